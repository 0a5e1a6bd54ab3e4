# Sets $stat to the fields of /proc/PID/stat after the name of the program: state, parent, group, session, … The name is in parentheses and
# may contain any text, line ends and parentheses too. Only numbers follow the last parenthesis.
read_stat() { # FILE
    stat=
    while IFS= read -r line || [ -n "$line" ]; do
        stat="$stat $line"
    done <"$1"
    stat=${stat##*)}
    # The process may have exited meanwhile.
    [ -n "$stat" ]
} 2>/dev/null
