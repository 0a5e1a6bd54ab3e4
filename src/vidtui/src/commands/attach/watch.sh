# Prints the log of a program until the program has ended. Every node of the program runs this.
# Arguments: the number of the node from 0, the log or its folder, a file that exists once the first node has ended, the Slurm job or an empty
# text, and the arguments of tail.
number=$1 log=$2 ended=$3 job=$4
shift 4
if [ "$number" != 0 ]; then
    # The supervisor of the node records its GPUs meanwhile.
    while [ ! -e "$ended" ]; do sleep 2; done
    exit 0
fi
if [ ! -e "$log" ]; then
    echo "$log does not exist on $(uname -n): put it on a file system that the nodes share" >&2
    exit 1
fi
[ -n "$job" ] || exec tail "$@"
is_in_queue() {
    states=$(squeue -h -j "$job" -o %T 2>&1) && { [ -n "$states" ]; return; }
    # An error other than this one does not show that the job has ended.
    case $states in *'nvalid job id'*) return 1 ;; esac
}
tail "$@" &
tail=$!
while is_in_queue; do sleep 5; done
# tail prints what was written last.
sleep 2
kill "$tail"
wait "$tail"
exit 0
