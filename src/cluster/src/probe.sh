# Prints a frame of what this node does every so many seconds, for `sh -c` with $query, $format, $apps, $every and $first set.
# One write per frame, after the line that begins it, so that a reader sees what a hung node hangs in.
# It starts as few programs as it can: on a busy node each of them waits for its turn.
export LC_ALL=C
read -r boot </proc/sys/kernel/random/boot_id
frame() {
    read -r load </proc/loadavg
    { read -r total && read -r _ && read -r available; } </proc/meminfo
    read -r cpu </proc/stat
    printf '#host\n%s\n%s\n%s\n%s\n%s\n#gpus\n' "$boot" "$load" "$total" "$available" "$cpu"
    timeout -k 2 20 nvidia-smi "$query" "$format" 2>&1
    status=$?
    # The empty line tells a last row that is whole from one that is not.
    printf '\n#exit %s\n' $status
    if [ $status != 127 ]; then
        listed=$(timeout -k 2 20 nvidia-smi "$apps" "$format" 2>&1)
        printf '#apps\n%s\n\n#exit %s\n' "$listed" $?
        processes
    fi
    echo "#end $1"
}
processes() {
    pids=''
    while IFS=', ' read -r _ pid _; do
        case $pid in '' | *[!0-9]*) ;; *) pids="$pids $pid" ;; esac
    done <<END
$listed
END
    [ -n "$pids" ] || return
    echo '#processes'
    ps -ww -o pid= -o user:32= -o etimes= -o args= -p "${pids# }" | cut -c 1-300
    echo '#environment'
    # shellcheck disable=SC2046,SC2086  # lists
    grep -sazHE '^(VIDTUI_RUN|RANK)=' $(printf '/proc/%s/environ ' $pids) | tr '\0' '\n'
}
frames() {
    number=0
    while :; do
        number=$((number + 1))
        echo "#frame $number $(date +%s.%N)" || exit
        whole=$(frame $number)
        printf '%s\n' "$whole" || exit
        sleep "$first"
        first=$every
    done
}
