# Prints the processes that hold GPU memory, as nvidia-smi reports them, and its exit status.
export LC_ALL=C
timeout -k 2 15 nvidia-smi "$apps" "$format" 2>&1
printf '\n%s\nend\n' $?
