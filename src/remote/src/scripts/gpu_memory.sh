# Prints the processes that hold GPU memory, as nvidia-smi reports them, and its exit status.
export LC_ALL=C
# If a folder of PATH cannot be searched, `timeout` reports a program that is missing (127) as forbidden (126).
if command -v nvidia-smi >/dev/null; then timeout -k 2 15 nvidia-smi "$apps" "$format" 2>&1; else (exit 127); fi
printf '\n%s\nend\n' $?
