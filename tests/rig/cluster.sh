# The head: runs in the outermost of the rig's namespaces.

inside_cluster() { # PID 1: when it ends, the kernel ends everything else
    trap 'echo "failed: $(tail -n 1 "$RIG/rig.log")"; end; exit 1' USR1
    trap 'end; exit' TERM
    { start_all </dev/null && echo "ready $RIG" || kill -USR1 1; } &
    if [ "$LIFELINE" = stdin ]; then
        while read -r _; do :; done
        end
    else
        while :; do sleep infinity & wait $!; done
    fi
}

end() { # also removes the files, since the caller may be gone
    local others
    kill -KILL -1
    while others=(/proc/[0-9]*) && [ ${#others[@]} -gt 1 ]; do sleep 0.01; done
    umount --lazy "$RIG/small" 2>/dev/null
    [ ! -e "$RIG/.rig" ] || rm -rf --one-file-system "$RIG"
}

start_all() {
    local i number node address
    mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/netns /run/sshd || return 1
    # The new /run hides the folder of the caller's XDG_RUNTIME_DIR.
    [[ ${XDG_RUNTIME_DIR:-} != /run/* ]] || mkdir -p "$XDG_RUNTIME_DIR"
    mount --bind "$RIG/hosts" /etc/hosts && mount --bind "$RIG/passwd" /etc/passwd && mount --bind "$RIG/shadow" /etc/shadow || return 1
    [ ! -e "$RIG/slurm" ] || mount --bind "$RIG/slurm" /etc/slurm || return 1
    mount -t tmpfs -o size=64m tmpfs "$RIG/small" || return 1
    hostname head
    {
        echo "link set lo up"
        echo "link add br0 type bridge forward_delay 0 mcast_snooping 0"
        echo "addr add $NETWORK.255.254/16 dev br0"
        echo "link set br0 up"
        for ((i = 1; i <= NODES; i++)); do
            name "$i"
            echo "netns add $node"
            echo "link add v$node type veth peer name eth0 netns $node"
            echo "link set v$node master br0 up"
        done
    } | ip -batch - || return 1
    for ((i = 1; i <= NODES; i++)); do name "$i" && start_node "$node"; done
    for ((i = 1; i <= NODES; i++)); do name "$i" && wait_for_sshd "$node" || return 1; done
    [ ! -e "$RIG/slurm" ] || start_slurm_head
}

start_node() {
    local folder=$RIG/nodes/$1
    rm -f "$folder/sshd.pid"
    setsid nsenter --net="/run/netns/$1" unshare --mount --uts --ipc --pid --fork --kill-child=KILL --mount-proc --propagation private \
        "$SELF" inside node "$1" >>"$folder/node.log" 2>&1 </dev/null &
    echo $! >"$folder/pid"
}

# sshd writes its pid file once it listens. Connecting to it is slower: a packet sent before the link is up costs a second.
wait_for_sshd() {
    local try
    for ((try = 0; try < 6000; try++)); do
        [ ! -s "$RIG/nodes/$1/sshd.pid" ] || return 0
        sleep 0.01
    done
    echo "node $1 has no sshd after a minute: $(tail -qn 1 "$RIG/nodes/$1/node.log" "$RIG/nodes/$1/sshd.log")" >&2
    return 1
}

end_node() { # returns when all processes of the node have ended
    local pid try
    pid=$(cat "$RIG/nodes/$1/pid")
    # The node's PID 1 is the child of this process, which ends once the PID namespace is empty.
    pkill -KILL -P "$pid"
    for ((try = 0; try < 6000; try++)); do
        [ -e "/proc/$pid/exe" ] || return 0
        sleep 0.01
    done
    echo "node $1 does not end" >&2
    return 1
}

node_is_on() { [ -e "/proc/$(cat "$RIG/nodes/$1/pid")/exe" ]; }

inside_on() { # NODE COMMAND…
    local node=$1 pid
    shift
    [ -d "$RIG/nodes/$node" ] || die "there is no node $node"
    node_is_on "$node" || die "node $node is off"
    pid=$(cat "$RIG/nodes/$node/pid")
    nsenter -t "$pid" --mount --net --uts --ipc --pid="/proc/$pid/ns/pid_for_children" --wdns="$PWD" -- "$@"
}

inside_status() {
    local folder number node address
    for folder in "$RIG"/nodes/*; do
        name "${folder##*/}"
        printf '%s  %-12s  ' "$node" "$address"
        if ! node_is_on "$node"; then
            echo "off"
            continue
        fi
        inside_on "$node" kill -0 "$(cat "$folder/sshd.pid")" 2>/dev/null || printf 'no sshd, '
        ip -o link show "v$node" up | grep -q . || printf 'cut off, '
        ! ip netns exec "$node" nft list table inet fault >/dev/null 2>&1 || printf 'filtered, '
        [ ! -s "$folder/gpus/mode" ] || printf 'nvidia-smi: %s, ' "$(cat "$folder/gpus/mode")"
        echo "on"
    done
}
