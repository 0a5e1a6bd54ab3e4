# Starts a script in a session of its own, and waits a while for its process file or its end. Secrets go from pipe to pipe.
secrets=$(cat)
if [ -n "$secrets" ]; then
    export VIDTUI_SECRETS=stdin
fi
printf '%s\n' "$secrets" | setsid bash @SCRIPT >/dev/null &
pid=$!
tries=0
while [ $tries -lt 100 ]; do
    if ! kill -0 $pid 2>/dev/null; then
        wait $pid
        status=$?
        # One that was quick leaves a process file when it ends.
        [ ! -e @PID_FILE ] || { echo started; exit 0; }
        echo "ended $status"
        exit 0
    fi
    [ ! -e @PID_FILE ] || { echo started; exit 0; }
    tries=$((tries + 1))
    sleep 0.05
done
echo slow
