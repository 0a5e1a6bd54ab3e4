# Prints the free memory in KiB: what the kernel can give without swapping, or less if a container or a Slurm job has a limit.
# Starts no other program: each would take a few milliseconds on every node.
memory_free= memory_group=
while read -r name value _; do
    [ "$name" = MemAvailable: ] && memory_free=$value && break
done </proc/meminfo
memory_of() {
    # $1: the folder of a control group. $2 and $3: its files with the limit and the use. Pages of files can be dropped.
    limit= used= files=0 total_files=
    { read -r limit <"$1/$2"; read -r used <"$1/$3"; } 2>/dev/null
    case $limit:$used in *[!0-9:]* | :* | *:) return ;; esac
    # A group without a limit has one near 2^63, which is more than every machine has.
    [ ${#limit} -gt 17 ] && return
    if [ -r "$1/memory.stat" ]; then
        while read -r name value || [ -n "$name" ]; do
            case $name in
            active_file | inactive_file) files=$((files + value)) ;;
            total_active_file | total_inactive_file) total_files=$((${total_files:-0} + value)) ;;
            esac
        done <"$1/memory.stat"
    fi
    left=$(((limit - used + ${total_files:-$files}) / 1024))
    [ "$left" -lt 0 ] && left=0
    [ "$left" -lt "$memory_free" ] && memory_free=$left && memory_group=$1
}
below() {
    # $1: the mount point of the control groups. $2: the group of this process. $3 and $4: as for memory_of.
    group=$2
    while :; do
        memory_of "$1${group%/}" "$3" "$4"
        case $group in */?*) group=${group%/*} ;; *) break ;; esac
    done
}
group_2= group_1=
while IFS=: read -r _ controllers path; do
    case $controllers in
    '') group_2=$path ;;
    memory) group_1=$path ;;
    esac
done </proc/self/cgroup
[ -n "$memory_free" ] && below /sys/fs/cgroup "$group_2" memory.max memory.current
[ -n "$memory_free" ] && below /sys/fs/cgroup/memory "$group_1" memory.limit_in_bytes memory.usage_in_bytes
[ -n "$memory_free" ] && echo "memory_free_kib $memory_free"
[ -n "$memory_group" ] && echo "memory_limit $memory_group"
