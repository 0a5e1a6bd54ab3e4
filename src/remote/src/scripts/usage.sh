# Prints the CPU time that the processes of a run have used, twice, one second apart. These are the supervisor's group and
# processes in other sessions whose environment contains the run, such as the workers of torchrun. The sampler of the node,
# another group of the supervisor's session, is excluded.
export LC_ALL=C
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
[ "$boot" = @BOOT ] || { echo end; exit; }
marked=" $(@MARKED | tr '\n' ' ')"
used() {
    for file in [0-9]*/stat; do
        read_stat "$file" || continue
        pid=${file%/*}
        # 12 and 13 are user and system time.
        set -- $stat
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
