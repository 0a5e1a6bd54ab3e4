# The packages that a rig needs.

# PROGRAM:PACKAGE; a package is installed if its program is on the PATH.
PACKAGES=(ssh:openssh-client sshd:openssh-server ip:iproute2 nft:nftables ps:procps unshare:util-linux awk:mawk)
# Packages without which some tests on a rig are skipped.
TEST_PACKAGES=(sudo:sudo fish:fish ksh:ksh tcsh:tcsh zsh:zsh)
SLURM_PACKAGES=(slurmctld:slurmctld slurmd:slurmd sinfo:slurm-client munged:munge)

missing() { # [MORE…]: the packages that are missing, in one line
    local entry names=() wanted=("${PACKAGES[@]}" "$@")
    [ -z "${SLURM:-}" ] || wanted+=("${SLURM_PACKAGES[@]}")
    for entry in "${wanted[@]}"; do
        type -P "${entry%%:*}" >/dev/null || names+=("${entry#*:}")
    done
    echo "${names[*]}"
}

impossible() { # prints why a rig cannot start here; returns 1 if it can
    [ "$(id -u)" = 0 ] || { echo "creating namespaces needs root" && return; }
    local names
    names=$(missing)
    [ -z "$names" ] || { echo "packages are missing: $names; \`cargo xtask rig install${SLURM:+ --slurm}\` installs them" && return; }
    nsenter --help | grep -q -- --wdns || { echo "util-linux is older than 2.38" && return; }
    "${NEW[@]}" ip link add rig0 type bridge 2>/dev/null || { echo "namespaces or bridges are not permitted here" && return; }
    return 1
}

install_packages() {
    local names
    names=$(missing "${TEST_PACKAGES[@]}")
    [ -n "$names" ] || { echo "all packages are installed" && return; }
    [ "$(id -u)" = 0 ] || die "installing $names needs root"
    type -P apt-get >/dev/null || die "apt-get was not found; install the equivalents of: $names"
    # Keeps the packages from starting their servers on this machine, such as an SSH server on port 22.
    local policy=/usr/sbin/policy-rc.d ours=''
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && ours=yes
    fi
    echo "installing $names"
    # shellcheck disable=SC2086  # a list of words
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $names; } >/tmp/rig-install.$$ 2>&1
    local status=$?
    [ $status = 0 ] || cat /tmp/rig-install.$$ >&2
    rm -f /tmp/rig-install.$$
    [ -z "$ours" ] || rm -f $policy
    return $status
}
