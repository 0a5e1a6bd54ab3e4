# Prints how much processor time the processes of a run have used, and the same a second later: the supervisor's group, and
# what carries the run's marks in a session of its own, as torchrun's workers do. What samples the node has another group of
# the supervisor's session.
export LC_ALL=C
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
[ "$boot" = @BOOT ] || { echo end; exit; }
marked=" $(@MARKED | tr '\n' ' ')"
used() {
    for stat in [0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        pid=${stat%/*}
        # What follows the name in parentheses: state, parent, group, session; the 12th and 13th are user and system time.
        set -- ${line##*) }
        if [ "$3" != @PGID ]; then
            [ "$4" != @PID ] || continue
            case $marked in *" $pid/environ "*) ;; *) continue ;; esac
        fi
        [ "${20}" -ge @START_TICKS ] && [ "$pid" != @PID ] && echo "$1 $pid $((${12} + ${13}))"
    done
}
echo "rate $(getconf CLK_TCK) $(date +%s.%N)"
used
sleep 1
echo "again $(date +%s.%N)"
used
echo end
