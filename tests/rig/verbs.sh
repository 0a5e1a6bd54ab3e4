# Faults and repairs of nodes. `rig verbs` prints the `##` comments.

list_verbs() { sed -n 's/^verb_\([a-z]*\)() *{* *##/  \1/p' "$RIG_SCRIPTS/verbs.sh"; }

inside_verb() { # VERB NODE [ARGUMENT]
    local verb=$1 node=${2:-}
    [ "$(type -t "verb_$verb")" = function ] || die "$verb is not a verb; \`rig verbs\` lists them"
    if [ "$verb" != slurmctld ]; then
        [ -n "$node" ] && [ -d "$RIG/nodes/$node" ] || die "$verb needs a node; ${node:-none} is not one"
    fi
    "verb_$verb" "${@:2}"
}

# Adds rules to the table `fault` in the node's network namespace. `heal` removes the table.
filter() { ip netns exec "$1" nft "add table inet fault; add chain inet fault in { type filter hook input priority 0; $3 }; $2"; }
sshd_pid() { cat "$RIG/nodes/$1/sshd.pid"; }

# Ends searches of a node and of the head for hardware addresses. If one began without a cable, the kernel would refuse new connections.
forget_addresses() {
    ip netns exec "$1" ip neigh flush all
    ip neigh flush all
}

verb_linkdown() { ## NODE           unplugs its cable: connections time out
    ip link set "v$1" down
}
verb_linkup() { ## NODE             plugs its cable in
    ip link set "v$1" up
    forget_addresses "$1"
}
verb_drop() { ## NODE               drops every packet, in and out
    filter "$1" "add chain inet fault out { type filter hook output priority 0; policy drop; }" "policy drop;"
}
verb_refuse() { ## NODE             refuses new SSH connections
    filter "$1" "add rule inet fault in tcp dport 22 tcp flags & (syn|ack) == syn reject with tcp reset" ""
}
verb_reset() { ## NODE              resets SSH connections at their next packet, and refuses new ones
    filter "$1" "add rule inet fault in tcp dport 22 reject with tcp reset" ""
}
verb_loss() { ## NODE PERCENT       drops a share of the incoming packets
    [[ ${2:-} =~ ^[0-9]{1,2}$ ]] || die "loss needs a percentage"
    filter "$1" "add rule inet fault in numgen random mod 100 < $2 drop" ""
}
verb_slow() { ## NODE MILLISECONDS  repeatedly stops its SSH server and sessions for that long
    [[ ${2:-} =~ ^[0-9]{1,5}$ ]] || die "slow needs milliseconds"
    local pause
    printf -v pause '%d.%03d' $(($2 / 1000)) $(($2 % 1000))
    touch "$RIG/nodes/$1/slow"
    # Only processes of root. A login in progress is in a seccomp sandbox, which kills it if it is stopped and continued during a sleep.
    # The same processes are continued that were stopped, because a child of a session may have started its command in between.
    inside_on "$1" setsid sh -c "while [ -e $RIG/self/slow ]; do all=\$(pgrep -u 0 -x sshd); kill -STOP \$all; sleep $pause; kill -CONT \$all; sleep 0.2; done" \
        </dev/null >/dev/null 2>&1 &
}
verb_heal() { ## NODE               undoes all verbs above
    rm -f "$RIG/nodes/$1/slow"
    ip link set "v$1" up
    ip netns exec "$1" nft 'delete table inet fault' 2>/dev/null || :
    forget_addresses "$1"
}
verb_stop() { ## NODE               stops all processes (SIGSTOP); the kernel still answers
    inside_on "$1" sh -c 'kill -STOP -1'
}
verb_cont() { ## NODE               continues all processes
    inside_on "$1" sh -c 'kill -CONT -1'
}
verb_stopsshd() { ## NODE           stops the SSH server; sessions continue
    inside_on "$1" kill -STOP "$(sshd_pid "$1")"
}
verb_contsshd() { ## NODE           continues the SSH server
    inside_on "$1" kill -CONT "$(sshd_pid "$1")"
}
verb_killsshd() { ## NODE           kills the SSH server; sessions continue
    # A killed process holds its port until its parent, the node's PID 1, has reaped it.
    inside_on "$1" sh -c 'kill -KILL "$1" && while kill -0 "$1" 2>/dev/null; do sleep 0.01; done' sh "$(sshd_pid "$1")"
}
verb_startsshd() { ## NODE          starts the SSH server
    rm -f "$RIG/nodes/$1/sshd.pid"
    inside_on "$1" /usr/sbin/sshd -f "$RIG/nodes/$1/sshd_config" -E "$RIG/nodes/$1/sshd.log" && wait_for_sshd "$1"
}
verb_dropsessions() { ## NODE       kills all SSH sessions; the server continues
    inside_on "$1" pkill -KILL -P "$(sshd_pid "$1")" || :
}
verb_poweroff() { ## NODE           cuts its power: connections time out, and every process ends
    ip link set "v$1" down && end_node "$1"
}
verb_panic() { ## NODE              ends every process; the kernel closes their connections
    end_node "$1"
}
verb_poweron() { ## NODE            starts it with a new boot id
    ! node_is_on "$1" || die "node $1 is on"
    verb_heal "$1"
    start_node "$1"
    wait_for_sshd "$1"
}
verb_newkey() { ## NODE             replaces its host key
    make_host_key "$1" && verb_killsshd "$1" && verb_startsshd "$1"
}
verb_nologin() { ## NODE            rejects the user's key
    mv "$RIG/nodes/$1/home/.ssh/authorized_keys" "$RIG/nodes/$1/home/.ssh/authorized_keys.off"
}
verb_login() { ## NODE              accepts the user's key
    mv "$RIG/nodes/$1/home/.ssh/authorized_keys.off" "$RIG/nodes/$1/home/.ssh/authorized_keys"
}
verb_smi() { ## NODE MODE           breaks nvidia-smi: nodriver, nodevices, mismatch, lost BUS_ID, slow SECONDS, hang, stuck…; ok, missing
    local bin=$RIG/nodes/$1/bin gpus=$RIG/nodes/$1/gpus
    # `timeout` never ends if its process is stuck in the kernel. Here a fake `timeout` does not end.
    if [ -e "$bin/timeout" ]; then
        rm "$bin/timeout"
        inside_on "$1" pkill -f '^sleep 7777' || :
    fi
    case ${2:-} in
        '') die "smi needs a mode" ;;
        stuck)
            printf '#!/bin/sh\ncase "$*" in *nvidia-smi*) exec sleep 7777 ;; *) exec /usr/bin/timeout "$@" ;; esac\n' >"$bin/timeout"
            chmod +x "$bin/timeout"
            ;;
        missing) rm -f "$bin/nvidia-smi" ;;
        *) ln -sf "$RIG_SCRIPTS/nvidia-smi" "$bin/" && rm -f "$gpus/mode" && { [ "$2" = ok ] || echo "${@:2}" >"$gpus/mode"; } ;;
    esac
}
verb_gpu() { ## NODE INDEX FIELD VALUE   sets a field of nvidia-smi: power.draw ~120:5, temperature.gpu [N/A]
    local table=$RIG/nodes/$1/gpus/table.tsv
    awk -F'\t' -v OFS='\t' -v index_=${2:-} -v field="${3:-}" -v value="${*:4}" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == field) at = i }
        NR > 1 && $1 == index_ && at { $at = value; done = 1 }
        { print }
        END { exit !done }' "$table" >"$table.new" || die "gpu needs an existing GPU, one of its fields, and a value"
    mv "$table.new" "$table"
}
verb_xid() { ## NODE NUMBER         adds an error of the NVIDIA driver to `dmesg`
    local folder=$RIG/nodes/$1
    [[ ${2:-} =~ ^[0-9]+$ ]] || die "xid needs a number, such as 79"
    local up
    read -r up _ </proc/uptime
    echo "[$up] NVRM: Xid (PCI:0000:19:00): $2, pid='<unknown>', name=<unknown>" >>"$folder/gpus/dmesg"
    printf '#!/bin/sh\n/bin/dmesg "$@"\ncat "%s"\n' "$folder/gpus/dmesg" >"$folder/bin/dmesg"
    chmod +x "$folder/bin/dmesg"
}
verb_fill() { ## NODE               fills its own disk, $RIG/self/disk
    inside_on "$1" sh -c "cat /dev/zero >$RIG/self/disk/full" 2>/dev/null || :
}
verb_unfill() { ## NODE             frees its own disk
    inside_on "$1" rm -f "$RIG/self/disk/full"
}
verb_clock() { ## NODE SECONDS      moves its `date` forward, or back
    [[ ${2:-} =~ ^-?[0-9]+(\.[0-9]+)?$ ]] || die "clock needs seconds"
    printf '#!/bin/sh\nexec /bin/date -d "%s seconds" "$@"\n' "$2" >"$RIG/nodes/$1/bin/date"
    chmod +x "$RIG/nodes/$1/bin/date"
}
verb_slurmctld() { ## stop|cont|kill|start   signals or starts Slurm's controller
    case ${1:-} in
        stop) pkill -STOP -x slurmctld ;;
        cont) pkill -CONT -x slurmctld ;;
        kill)
            pkill -KILL -x slurmctld
            # Until it has ended, it holds the port that the next one needs.
            while ps -C slurmctld -o stat= | grep -qv '^Z'; do sleep 0.01; done
            ;;
        start) start_slurmctld ;;
        *) die "slurmctld needs stop, cont, kill or start" ;;
    esac
}
