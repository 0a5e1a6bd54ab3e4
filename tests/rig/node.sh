# PID 1 of a node, in its own namespaces.

inside_node() { # NAME
    local number node address folder=$RIG/nodes/$1
    name "$1"
    hostname "$node"
    {
        echo "link set lo up"
        echo "addr replace $address/16 dev eth0"
        echo "link set eth0 up"
    } | ip -batch -
    mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/sshd
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    # The network interfaces in /sys are those of this node.
    mkdir /run/sys && mount -t sysfs sysfs /run/sys
    mount --rbind /sys/fs/cgroup /run/sys/fs/cgroup && mount --move /run/sys /sys
    mount --bind "$folder" "$RIG/self"
    mount -t tmpfs -o size=64m tmpfs "$RIG/self/disk"
    mount --bind "$folder/hostname" /etc/hostname
    # Each start of a node has a new boot id.
    echo "$(</proc/sys/kernel/random/uuid)" >"$folder/boot_id"
    mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
    [ ! -e "$RIG/slurm" ] || start_slurm_node
    /usr/sbin/sshd -D -f "$folder/sshd_config" -E "$folder/sshd.log" &
    # bash reaps orphan processes. The loop survives `kill -9 -1`, as a machine does.
    while :; do sleep infinity & wait $!; done
}
