# Lists the processes that hold memory of GPUs as nvidia-smi does, and how it ended.
export LC_ALL=C
timeout -k 2 15 nvidia-smi "$apps" "$format" 2>&1
printf '\n%s\nend\n' $?
