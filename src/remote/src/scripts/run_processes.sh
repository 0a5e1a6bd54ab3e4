# Lists the live processes that a process file names, and those whose environment names the same run, attempt and node, with
# what tells whose they are. Written for any POSIX shell.
export LC_ALL=C
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
echo "boot $boot"
marked=" $(@MARKED | tr '\n' ' ')"
for stat in [0-9]*/stat; do
    # One that ends meanwhile is not there any more.
    { read -r line <"$stat"; } 2>/dev/null || continue
    pid=${stat%/*}
    # The name in parentheses may hold anything; what follows it are numbers: state, parent, group, session, …
    set -- ${line##*) }
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
        run=$(printf '%s\n' "$variables" | sed -n 's/^VIDTUI_RUN=/=/p' | head -n 1)
        run=${run:--}
    fi
    # After the environment: a process that ends gives both back at once, and is then one without a command line.
    words=$(tr '\0\n\t' '   ' <"$pid/cmdline") 2>/dev/null || continue
    name=
    [ -n "$words" ] || { read -r name <"$pid/comm"; } 2>/dev/null
    printf 'process\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$pid" "$1" "$3" "$4" "${20}" "$run" "$mark" "$name" "$words"
done
echo end
