# Prints the free memory in KiB: what the kernel can give without swapping, or less if a container or a Slurm job has a limit.
memory_free=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
memory_group=
memory_of() {
    # $1: the folder of a control group. $2 and $3: its files with the limit and the use. Pages of files can be dropped.
    limit=$(cat "$1/$2" 2>/dev/null) used=$(cat "$1/$3" 2>/dev/null)
    case $limit:$used in *[!0-9:]* | :* | *:) return ;; esac
    files=$(awk '/^(total_)?(in)?active_file / { sum[$1 ~ /^total_/] += $2 } END { printf "%.0f", (1 in sum) ? sum[1] : sum[0] }' "$1/memory.stat" 2>/dev/null)
    # A group without a limit has one near 2^63, which is more than every machine has.
    left=$(awk -v limit="$limit" -v used="$used" -v files="${files:-0}" 'BEGIN { left = limit - used + files; printf "%.0f", (left < 0 ? 0 : left) / 1024 }')
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
below /sys/fs/cgroup "$(sed -n 's/^0:://p' /proc/self/cgroup)" memory.max memory.current
below /sys/fs/cgroup/memory "$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)" memory.limit_in_bytes memory.usage_in_bytes
[ -n "$memory_free" ] && echo "memory_free_kib $memory_free"
[ -n "$memory_group" ] && echo "memory_limit $memory_group"
