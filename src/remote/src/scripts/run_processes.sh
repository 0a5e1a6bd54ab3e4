# Lists the live processes that a process file names and those whose environment contains the same run, attempt and node,
# with the facts that identify their owner. A NUL ends each field, because all of them may contain line ends. Runs in any POSIX shell, and starts few programs, because it runs until the processes have ended.
export LC_ALL=C
newline='
'
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
printf 'boot\0%s\0' "$boot"
marked=" $(@MARKED | tr '\n' ' ')"
for file in [0-9]*/stat; do
    read_stat "$file" || continue
    pid=${file%/*}
    set -- $stat
    case $1 in Z | X) continue ;; esac
    mark=-
    case $marked in *" $pid/environ "*) mark=marked ;; esac
    if [ "$3" = @PGID ] || [ "$4" = @PID ]; then :; else
        case " @PIDS $mark " in *" $pid "* | *' marked '*) ;; *) continue ;; esac
    fi
    if ! variables=$(tr '\0\n' '\n ' <"$pid/environ") 2>/dev/null; then
        [ -e "$pid" ] || continue
        run='!'
    else
        variables=$newline$variables
        case $variables in
            *"${newline}VIDTUI_RUN="*) run=${variables#*"${newline}VIDTUI_RUN="} run==${run%%"$newline"*} ;;
            *) run=- ;;
        esac
    fi
    # Read after the environment: an exiting process loses both at once, and then counts as one without a command line.
    words=$(tr '\0\n\t' '   ' <"$pid/cmdline") 2>/dev/null || continue
    name=
    [ -n "$words" ] || { read -r name <"$pid/comm"; } 2>/dev/null
    printf 'process\0%s\0%s\0%s\0%s\0%s\0%s\0%s\0%s\0%s\0' "$pid" "$1" "$3" "$4" "${20}" "$run" "$mark" "$name" "$words"
done
printf 'end\0'
