# One round of the fake nvidia-smi. Standard input: the ranks of this node, as /proc/PID/environ:LOCAL_RANK=N.

function unit(field) {
    if (field ~ /^(memory\.|used_gpu_memory)/) return "MiB"
    if (field ~ /^power\.|power\.limit$/) return "W"
    if (field ~ /^(utilization\.|fan\.speed)/) return "%"
    if (field ~ /^clocks\.(current|max)/) return "MHz"
    return ""
}

# Returns the name that headers have for a requested field.
function canonical(field) {
    if (ask == "gpu") {
        if (field == "gpu_uuid") return "uuid"
        if (field == "gpu_name") return "name"
        if (field == "gpu_bus_id") return "pci.bus_id"
        sub(/^clocks_throttle_reasons\./, "clocks_event_reasons.", field)
        sub(/^clocks\.sm$/, "clocks.current.sm", field)
        sub(/^clocks\.mem$/, "clocks.current.memory", field)
    } else {
        if (field == "used_memory") return "used_gpu_memory"
        if (field == "name") return "process_name"
    }
    return field
}

function known(field) {
    if (mode == "old" && asked[field] ~ /^clocks_event_reasons/) return 0
    if (ask == "apps") return field ~ /^(timestamp|gpu_uuid|gpu_name|gpu_bus_id|pid|process_name|used_gpu_memory)$/
    return field in column || field ~ /^(timestamp|count)$/
}

# A raw value as it is now: the busy or the idle one, moved.
function now_of(field, gpu,    value, parts) {
    if (field == "timestamp") return stamp
    if (field == "count") return gpus
    value = cell[gpu, field]
    if (index(value, "|")) { split(value, parts, "|"); value = parts[busy[gpu] ? 2 : 1] }
    if (value ~ /^~/) {
        split(substr(value, 2), parts, ":")
        value = parts[1] + parts[2] * sin(now / 7 + gpu * 1.7 + length(field))
        value = field ~ /^power/ ? sprintf("%.2f", value) : sprintf("%d", value)
    }
    return value
}

function with_unit(field, value) {
    return value ~ /^[0-9]/ && unit(field) != "" && format !~ /,nounits,/ ? value " " unit(field) : value
}

function whole(value, suffix) { return value ~ /^[0-9]/ ? sprintf("%d%s", value, suffix) : value }

function wanted(gpu) {
    return only == "" || index("," only ",", "," cell[gpu, "index"] ",") || only == cell[gpu, "uuid"] || only == cell[gpu, "pci.bus_id"]
}

function add_app(uuid, pid, name, mib) {
    if (!(uuid in gpu_of)) return
    app[++count, "gpu_uuid"] = uuid; app[count, "pid"] = pid; app[count, "process_name"] = name; app[count, "used_gpu_memory"] = mib
    app[count, "gpu_name"] = cell[gpu_of[uuid], "name"]; app[count, "gpu_bus_id"] = cell[gpu_of[uuid], "pci.bus_id"]; app[count, "timestamp"] = stamp
    busy[gpu_of[uuid]] = 1
}

function read_state(    line, parts, i, name) {
    while ((getline line < table) > 0) {
        n = split(line, parts, "\t")
        if (!width) { width = n; for (i = 1; i <= n; i++) { name[i] = parts[i]; column[parts[i]] = i }; continue }
        gpus++
        for (i = 1; i <= width; i++) cell[gpus, name[i]] = parts[i]
        gpu_of[cell[gpus, "uuid"]] = gpus; by_index[cell[gpus, "index"]] = gpus
    }
    while ((getline line < apps) > 0) { split(line, parts, "\t"); add_app(parts[1], parts[2], parts[3], parts[4]) }
}

BEGIN { split(clock, times, "|"); now = times[1]; stamp = times[2]; long = times[3]; read_state() }

{ # a rank of this node
    split($0, part, /[\/:=]/)
    pid = part[3]; local_rank = part[6]
    if (!(local_rank in by_index)) next
    exe = "ps -o args= -p " pid; name = ""
    exe | getline name; close(exe); sub(/ .*/, "", name)
    if (name != "") add_app(cell[by_index[local_rank], "uuid"], pid, name, 70210)
}

END {
    n = split(fields, field, ",")
    for (i = 1; i <= n; i++) {
        gsub(/^ +| +$/, "", field[i])
        asking = field[i]; field[i] = canonical(asking); asked[field[i]] = asking
        if (!known(field[i])) { printf "Field \"%s\" is not a valid field to query.\n\n", asking; exit 2 }
    }
    if ((ask == "gpu" || ask == "apps") && first && format !~ /,noheader,/) {
        for (i = 1; i <= n; i++) line = line (i > 1 ? ", " : "") field[i] (unit(field[i]) ? " [" unit(field[i]) "]" : "")
        print line
    }
    for (gpu = 1; gpu <= gpus; gpu++) {
        if (mode == "lost" && cell[gpu, "pci.bus_id"] == what) {
            bus = what; sub(/^0000/, "", bus)
            printf "Unable to determine the device handle for GPU%d: %s: GPU is lost.  Reboot the system to recover this GPU\n", gpu - 1, bus
            status = 15
            continue
        }
        if (!wanted(gpu)) continue
        if (ask == "gpu") {
            line = ""
            for (i = 1; i <= n; i++) line = line (i > 1 ? ", " : "") with_unit(field[i], now_of(field[i], gpu))
            if (mode == "half") { printf "%s", substr(line, 1, length(line) / 2); fflush(); system("sleep 1000") }
            print line
        }
        if (ask == "list") printf "GPU %s: %s (UUID: %s)\n", cell[gpu, "index"], cell[gpu, "name"], cell[gpu, "uuid"]
        if (ask == "table") print_gpu(gpu)
    }
    if (ask == "apps") for (a = 1; a <= count; a++) {
        line = ""
        for (i = 1; i <= n; i++) line = line (i > 1 ? ", " : "") with_unit(field[i], app[a, field[i]])
        print line
    }
    if (ask == "table") print_apps()
    exit status
}

function print_gpu(gpu,    row) {
    rule = "+-----------------------------------------+------------------------+----------------------+"
    wide = "+-----------------------------------------------------------------------------------------+"
    if (!titled++) {
        print long "       "; print wide
        print "| NVIDIA-SMI 590.48.01              Driver Version: 590.48.01      CUDA Version: 13.1     |"; print rule
        print "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
        print "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
        print "|                                         |                        |               MIG M. |"
        print "|=========================================+========================+======================|"
    }
    printf "| %3s  %-30s%3s  | %18s Off | %20s |\n", cell[gpu, "index"], substr(cell[gpu, "name"], 1, 30), "On", \
        cell[gpu, "pci.bus_id"], now_of("ecc.errors.uncorrected.volatile.total", gpu)
    printf "| N/A  %4s    P0         %7s / %5s | %10s / %9s | %7s      Default |\n", whole(now_of("temperature.gpu", gpu), "C"), \
        whole(now_of("power.draw", gpu), "W"), whole(now_of("power.limit", gpu), "W"), whole(now_of("memory.used", gpu), "MiB"), \
        whole(now_of("memory.total", gpu), "MiB"), whole(now_of("utilization.gpu", gpu), "%")
    printf "|                                         |                        | %20s |\n", cell[gpu, "mig.mode.current"]; print rule
}

function print_apps(    a) {
    print ""; print wide
    print "| Processes:                                                                              |"
    print "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |"
    print "|        ID   ID                                                               Usage      |"
    print "|=========================================================================================|"
    for (a = 1; a <= count; a++)
        printf "| %4s   N/A  N/A %15s      C   %-32s %9sMiB |\n", cell[gpu_of[app[a, "gpu_uuid"]], "index"], app[a, "pid"], \
            substr(app[a, "process_name"], 1, 32), app[a, "used_gpu_memory"]
    if (!count) print "|  No running processes found                                                             |"
    print wide
}
