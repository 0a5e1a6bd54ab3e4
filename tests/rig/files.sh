# The files of a rig, written before its processes start.
#
#   $RIG/ssh_config known_hosts id_ed25519 hostfile   for SSH clients
#   $RIG/share     shared by the head and all nodes, like a shared file system; so is all of this machine's disk
#   $RIG/small     shared too, on a disk of 64 MiB; its files are not visible outside the rig
#   $RIG/self      on each node, its folder $RIG/nodes/NAME; on the head, a folder of its own:
#       home/      root's home          bin/    first on the PATH: nvidia-smi
#       gpus/      nvidia-smi's data disk/   a disk of 64 MiB

NETWORK=10.99 # /16; the head is .255.254

# Sets number, node and address from a number or a name. Starts no process, because the start of a rig calls it often.
name() {
    number=$((10#${1#node}))
    printf -v node 'node%02d' "$number"
    address=$NETWORK.$(((number - 1) / 250)).$(((number - 1) % 250 + 1))
}

prepare() {
    local i number node address
    mkdir -p "$RIG" && [ -O "$RIG" ] && chmod 755 "$RIG" || return 1
    touch "$RIG/.rig" # only folders with this file are removed
    mkdir -p "$RIG/share" "$RIG/small" "$RIG/self" && make_home "$RIG/self" || return 1
    echo "127.0.0.1 localhost" >"$RIG/hosts"
    echo "$NETWORK.255.254 head" >>"$RIG/hosts"
    ssh-keygen -q -t ed25519 -N '' -C rig -f "$RIG/id_ed25519" || return 1
    # Root has the rig's home, and can log in by key even if the account of this machine is locked.
    sed "s|^\(root:[^:]*:[^:]*:[^:]*:[^:]*\):[^:]*|\1:$RIG/self/home|" /etc/passwd >"$RIG/passwd"
    (umask 077 && sed 's|^root:[^:]*|root:*|' /etc/shadow >"$RIG/shadow")
    # Another user, who logs in with the same key.
    echo "eve:x:1042:1042::$RIG/self/home:/bin/bash" >>"$RIG/passwd"
    echo 'eve:*:20000::::::' >>"$RIG/shadow"
    for ((i = 1; i <= NODES; i++)); do prepare_node "$i" || return 1; done
    write_ssh_config
    for home in "$RIG"/self/home "$RIG"/nodes/*/home; do ln -s "$RIG/ssh_config" "$home/.ssh/config"; done
    [ -z "$SLURM" ] || prepare_slurm
}

make_home() { mkdir -p "$1"/{home/.ssh,bin,gpus,disk}; }

prepare_node() {
    local folder key
    name "$1"
    folder=$RIG/nodes/$node
    make_home "$folder" && make_host_key "$node" || return 1
    echo "$(<"$RIG/id_ed25519.pub")" >"$folder/home/.ssh/authorized_keys"
    read -r -a key <"$folder/host_key.pub"
    echo "$node,$address ${key[0]} ${key[1]}" >>"$RIG/known_hosts"
    echo "$address $node" >>"$RIG/hosts"
    echo "$node slots=$((GPUS > 0 ? GPUS : 1))" >>"$RIG/hostfile"
    echo "$node" >"$folder/hostname"
    ln -s "$RIG_SCRIPTS/nvidia-smi" "$RIG_SCRIPTS/nvidia-smi.awk" "$folder/bin/"
    write_gpus "$1" >"$folder/gpus/table.tsv"
    : >"$folder/gpus/apps.tsv"
    echo "\
ListenAddress $address
HostKey $folder/host_key
PidFile $folder/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 200
LogLevel VERBOSE
SetEnv OMP_NUM_THREADS=1 PATH=$RIG/self/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Subsystem sftp internal-sftp" >"$folder/sshd_config"
}

make_host_key() {
    rm -f "$RIG/nodes/$1"/host_key*
    ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$RIG/nodes/$1/host_key"
}

write_ssh_config() { # an address per node, so that no resolver is needed
    local i number node address
    for ((i = 1; i <= NODES; i++)); do
        name "$i"
        printf 'Host %s\n  HostName %s\n' "$node" "$address"
    done >"$RIG/ssh_config"
    cat >>"$RIG/ssh_config" <<END
Host node* $NETWORK.*
  User root
  IdentityFile $RIG/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $RIG/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
END
}

write_gpus() { # GPUs as an H100 node has them, idle until a rank uses them
    local i
    printf '%s\t' index uuid name pci.bus_id driver_version power.draw power.limit memory.used memory.total utilization.gpu temperature.gpu \
        clocks.current.sm ecc.mode.current ecc.errors.uncorrected.volatile.total clocks_event_reasons.active mig.mode.current fan.speed \
        pcie.link.gen.current
    printf 'pcie.link.width.current\n'
    for ((i = 0; i < GPUS; i++)); do
        printf '%d\tGPU-%08x-%04x-4000-8000-%012x\tNVIDIA H100 80GB HBM3\t00000000:%02X:00.0\t590.48.01\t' \
            "$i" "$(($1 * 4096 + i))" "$i" "$(($1 * 1000 + i))" $((0x19 + i * 0x11))
        printf '%s\t' '~70:2|~640:50' 700.00 '0|~71234:400' 81559 '0|~97:3' '~31:2|~62:4' '345|~1900:60' Enabled 0
        printf '0x0000000000000001|0x0000000000000000\tDisabled\t[N/A]\t5\t16\n'
    done
}
