# Slurm on the rig: slurmd on each node, slurmctld on the head.

prepare_slurm() {
    local slurm=$RIG/slurm i devices=''
    mkdir -p "$slurm"/{state,log,dev}
    (umask 077 && dd if=/dev/urandom of="$slurm/munge.key" bs=128 count=1 status=none)
    # gres.conf needs device files; with a count alone Slurm finds 0 GPUs. These are copies of /dev/null.
    for ((i = 0; i < GPUS; i++)); do mknod -m 666 "$slurm/dev/nvidia$i" c 1 3 || return 1; done
    [ "$GPUS" = 0 ] || devices="Gres=gpu:$GPUS"
    [ "$GPUS" = 0 ] || echo "Name=gpu File=$slurm/dev/nvidia[0-$((GPUS - 1))]" >"$slurm/gres.conf"
    cat >"$slurm/slurm.conf" <<END
ClusterName=rig
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits for this time and a second; the default is two minutes.
AuthInfo=cred_expire=10
StateSaveLocation=$slurm/state
SlurmdSpoolDir=/run/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmctldPidFile=/run/slurmctld.pid
SlurmdLogFile=$slurm/log/slurmd-%n.log
SlurmctldLogFile=$slurm/log/slurmctld.log
# By process group: with linuxproc an orphan of a task would survive its end and hold the step for half a minute. Needs no cgroups.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
# Records final job states without a database: \`sacct -c\`.
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$slurm/log/jobs.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
# The nodes are configured with more cores and memory than this machine has.
SlurmdParameters=config_overrides
ReturnToService=2
# Jobs of the partition urgent preempt others, which are requeued.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldTimeout=10
SlurmdTimeout=5
MessageTimeout=5
KillWait=2
PropagateResourceLimits=NONE
NodeName=node[01-$(printf %02d "$NODES")] CPUs=8 RealMemory=4000 $devices State=UNKNOWN
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
PartitionName=debug Nodes=node01 MaxTime=00:10:00 State=UP
END
}

start_munge() {
    mkdir -p /run/munge
    munged --key-file="$RIG/slurm/munge.key" --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid \
        --log-file=/run/munge/munged.log --seed-file=/run/munge/munged.seed --num-threads=2
}

start_slurm_node() {
    mount --bind "$RIG/slurm" /etc/slurm
    mkdir -p /run/slurmd
    start_munge
    PATH=$RIG/self/bin:$PATH slurmd
}

start_slurmctld() { # returns when it answers, since the daemon detaches before it listens
    local try
    slurmctld || return 1
    for ((try = 0; try < 1200; try++)); do
        ! timeout 3 scontrol ping 2>/dev/null | grep -q UP || return 0
        sleep 0.05
    done
    echo "Slurm's controller does not answer after a minute" >&2
    return 1
}

start_slurm_head() { # returns when all nodes are idle
    local try
    start_munge && start_slurmctld || return 1
    for ((try = 0; try < 1200; try++)); do
        [ "$(timeout 3 sinfo -h -p train -t idle -o %D 2>/dev/null)" != "$NODES" ] || return 0
        sleep 0.05
    done
    echo "Slurm has no $NODES idle nodes after a minute: $(sinfo -h -p train -o '%D %T %E' 2>&1 | tr '\n' ';')" >&2
    return 1
}
