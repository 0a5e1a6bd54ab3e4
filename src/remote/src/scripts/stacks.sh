# Prints where the processes of a run are: what the kernel says of each thread, and the stacks of py-spy and gdb where they
# are installed. A process is looked into only if its start time and its environment say that it is the run's. gdb halts it
# for a moment; nothing else touches it.
export LC_ALL=C
cd /proc || exit
read -r boot <sys/kernel/random/boot_id || exit
[ "$boot" = @BOOT ] || { echo end; exit; }
within() { timeout -k 2 @WITHIN "$@" 2>&1 </dev/null || echo "(${1##*/} ended with status $?)"; }
marked=" $(@MARKED | tr '\n' ' ')"
look_into=
for stat in [0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    pid=${stat%/*}
    set -- ${line##*) }
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
        { read -r name <"$task/comm" && read -r line <"$task/stat"; } 2>/dev/null || continue
        set -- ${line##*) }
        waits=
        # It has no line end, which `read` takes for a failure.
        { read -r waits <"$task/wchan"; } 2>/dev/null
        printf -- '--- thread %s (%s): state %s, waits in %s\n' "${task##*/}" "$name" "$1" "${waits:-?}"
        # Only root may read it.
        cat "$task/stack" 2>/dev/null
    done
    # A supervisor only waits, and what samples the node has a group of its own: their functions tell nothing.
    [ "$pid" = @PID ] || [ -n "$samples" ] || look_into="$look_into $pid"
done
# Last, since a debugger halts what it looks into; all at once, since each reads the symbols of large libraries.
debuggers() { # PID
    if command -v py-spy >/dev/null && tr '\0' ' ' <"$1/cmdline" 2>/dev/null | grep -q python; then
        echo '--- py-spy'
        within py-spy dump --pid "$1"
    fi
    if command -v gdb >/dev/null; then
        echo '--- gdb'
        within gdb -nx -batch -p "$1" -ex 'set pagination off' -ex 'thread apply all backtrace 40'
    fi
}
if said=$(mktemp -d) 2>/dev/null; then
    for pid in $look_into; do debuggers "$pid" >"$said/$pid" & done
    wait
    for pid in $look_into; do
        [ -s "$said/$pid" ] && printf '\n=== functions of process %s\n' "$pid" && cat "$said/$pid"
    done
    rm -rf "$said"
fi
command -v gdb >/dev/null || command -v py-spy >/dev/null ||
    printf '\n(neither gdb nor py-spy is installed on this node: they would show the functions that each thread is in)\n'
echo end
