# Prints the stacks of a run's processes: the kernel's state of each thread, and the stacks of py-spy and gdb where they are
# installed. Only processes whose start time and environment match the run are inspected. gdb stops a process for a moment;
# nothing else affects it.
export LC_ALL=C
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
[ "$boot" = @BOOT ] || { echo end; exit; }
limited() { timeout -k 2 @TIMEOUT "$@" 2>&1 </dev/null || echo "(${1##*/} failed with status $?)"; }
marked=" $(@MARKED | tr '\n' ' ')"
inspected=
for file in [0-9]*/stat; do
    read_stat "$file" || continue
    pid=${file%/*}
    set -- $stat
    samples=
    case "$3 $marked" in
        @PGID\ * | *" $pid/environ "*) ;;
        *) [ "$4" = @PID ] && samples=yes || continue ;;
    esac
    [ "${20}" -ge @START_TICKS ] || continue
    variables=$(tr '\0\n' '\n ' <"$pid/environ" 2>/dev/null) || continue
    [ "$(printf '%s\n' "$variables" | sed -n 's/^VIDTUI_RUN=//p' | head -n 1)" = @RUN ] || continue
    rank=$(printf '%s\n' "$variables" | sed -n 's/^RANK=//p' | head -n 1)
    [ "$pid" != @PID ] || rank=
    words=$(tr '\0\n' '  ' <"$pid/cmdline" 2>/dev/null)
    printf '\n=== process %s%s, state %s: %s\n' "$pid" "${rank:+, rank $rank}" "$1" "$words"
    for task in "$pid"/task/*; do
        { read -r name <"$task/comm"; } 2>/dev/null && read_stat "$task/stat" || continue
        set -- $stat
        waits=
        # The file has no newline, so `read` returns an error although it reads the value.
        { read -r waits <"$task/wchan"; } 2>/dev/null
        printf -- '--- thread %s (%s): state %s, waits in %s\n' "${task##*/}" "$name" "$1" "${waits:-?}"
        # Only root can read the kernel stack.
        cat "$task/stack" 2>/dev/null
    done
    # The supervisor only waits, and the sampler, which has its own group, does not train: their stacks are not useful.
    [ "$pid" = @PID ] || [ -n "$samples" ] || inspected="$inspected $pid"
done
# Debuggers run last, because they stop a process, and in parallel, because each reads the symbols of large libraries.
debuggers() { # PID
    if command -v py-spy >/dev/null && tr '\0' ' ' <"$1/cmdline" 2>/dev/null | grep -q python; then
        echo '--- py-spy'
        limited py-spy dump --pid "$1"
    fi
    if command -v gdb >/dev/null; then
        echo '--- gdb'
        limited gdb -nx -batch -p "$1" -ex 'set pagination off' -ex 'thread apply all backtrace 40'
    fi
}
if folder=$(mktemp -d) 2>/dev/null; then
    for pid in $inspected; do debuggers "$pid" >"$folder/$pid" & done
    wait
    for pid in $inspected; do
        [ -s "$folder/$pid" ] && printf '\n=== functions of process %s\n' "$pid" && cat "$folder/$pid"
    done
    rm -rf "$folder"
fi
command -v gdb >/dev/null || command -v py-spy >/dev/null ||
    printf '\n(install gdb or py-spy on this node to see the functions of each thread)\n'
echo end
