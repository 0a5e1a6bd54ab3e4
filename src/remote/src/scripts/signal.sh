# Signals processes if each is still the one that was listed: same boot id, start time and group.
export LC_ALL=C
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
[ "$boot" = @BOOT ] || { echo booted; exit; }
is_still() { # PID START_TICKS GROUP
    ticks=$2 group=$3
    read_stat "$1/stat" || return
    set -- $stat
    [ "${20}" = "$ticks" ] && [ "$3" = "$group" ]
}
failed=
# Sends the signal to a process or, with a leading minus, a group. A process that has exited meanwhile is no error.
send() {
    output=$(@KILL -s @SIGNAL -- "$1" 2>&1) && return
    case $1 in -*) return ;; esac
    [ ! -e "$1" ] || failed=$output
}
sent_group=
@SENDS
[ -z "$failed" ] && echo sent || echo "refused $failed"
