#!/usr/bin/env bash
# Real test hosts on one machine: systemd as PID 1 and OpenSSH sshd, each with its own address.
#   hosts.sh up             boot them; writes $LAB_STATE/{ssh_config,key,known_hosts,hosts}
#   hosts.sh exec CMD...    run CMD in the lab's network namespace (files, user, PIDs: the caller's)
#   hosts.sh in HOST CMD... run CMD inside a host, past its network
#   hosts.sh link HOST up|down   pass or drop every packet to and from a host
#   hosts.sh reset HOST     a power cut: everything in the host dies at once, then it boots again
#   hosts.sh down           kill and remove all of it; may be repeated, works after kill -9 of anything
# Needs root and: systemd-container openssh-server iproute2 util-linux. Exits 77 where it can't run.
# shellcheck disable=SC2016  # the lines given to with_cg expand in its own shell
set -euo pipefail
export LAB_STATE=${LAB_STATE:?a folder for the state of the lab}
export LAB_HOSTS=${LAB_HOSTS:-1}        # h1..hN at $LAB_NET.11 and up
export LAB_NET=${LAB_NET:-10.77.0}       # exists only inside namespaces that the lab makes
export LAB_BASE=${LAB_BASE:-/}           # "/": overlay of this machine; or a debootstrap folder
export LAB_IMAGE=${LAB_IMAGE:-}          # a folder whose opt/ every host has as its own /opt, writable
export LAB_BIND=${LAB_BIND:-}            # a folder of this machine that every host sees, read-only
export LAB_TMPFS=${LAB_TMPFS:-4g}        # cap on what the hosts together may write
export LAB_BOOT_TIMEOUT=${LAB_BOOT_TIMEOUT:-180}
SELF=$(readlink -f "$0")
CG=lab-$(printf %s "$LAB_STATE" | cksum | cut -d' ' -f1)   # this lab's cgroup, named after its folder

say() { printf 'lab: %s\n' "$*" >&2; }

with_cg() { # run a line with $CGROOT = the lab's cgroup, whatever the machine's own cgroup layout
  unshare --mount --propagation private bash -c 'set -e; mount -t tmpfs none /mnt; mkdir /mnt/cg
    mount -t cgroup2 none /mnt/cg; CGROOT=/mnt/cg/$1; eval "$2"' _ "$CG" "$1"; }

add_user() { # ROOT NAME UID: a login by the lab's key, without password
  echo "$2:x:$3:$3::/home/$2:/bin/bash" >> "$1"/etc/passwd; echo "$2:x:$3:" >> "$1"/etc/group
  echo "$2:*:19000:0:99999:7:::" >> "$1"/etc/shadow
  mkdir -p "$1/home/$2/.ssh"; install -m 600 "$LAB_STATE"/key.pub "$1/home/$2/.ssh/authorized_keys"
  chown -R "$3:$3" "$1/home/$2"; chmod 700 "$1/home/$2" "$1/home/$2/.ssh"
}

prepare_host() { # NAME -> $W/NAME/root
  local n=$1 up=$W/$1/up mask=$W/$1/mask r=$W/$1/root e
  mkdir -p "$up"/{etc,var} "$mask"/{etc/systemd,var} "$W/$n/work" "$r"
  # Whiteouts: this machine's enabled services, keys, logs and private files are not the host's.
  for e in /etc/ssh /etc/systemd/system /var/log /var/tmp /var/lib/ddtree-ops; do
    mkdir -p "$mask${e%/*}"; mknod "$mask$e" c 0 0; done
  if [ "$LAB_BASE" = / ]; then
    for e in /*; do case $e in /bin|/boot|/dev|/etc|/lib*|/proc|/run|/sbin|/sys|/usr|/var) ;; *) mknod "$mask$e" c 0 0 ;; esac; done
  fi
  mount -t overlay "lab-$n" -o "lowerdir=$mask:$LAB_BASE,upperdir=$up,workdir=$W/$n/work" "$r"
  mkdir -p "$r"/{home,mnt,opt,srv,root/.ssh,tmp,var/log/journal,var/tmp} \
    "$r"/etc/{ssh,sudoers.d,systemd/system/multi-user.target.wants,systemd/system-generators,systemd/journald.conf.d}
  if [ -n "$LAB_IMAGE" ]; then  # a mount of its own: overlayfs takes no layer that lies within another
    mkdir -p "$W/$n"/opt/{up,work}
    mount -t overlay "lab-$n-opt" -o "lowerdir=$LAB_IMAGE/opt,upperdir=$W/$n/opt/up,workdir=$W/$n/opt/work" "$r"/opt
  fi
  chmod 755 "$r" "$r"/opt; chmod 700 "$r"/root "$r"/root/.ssh; chmod 1777 "$r"/tmp "$r"/var/tmp
  ln -s /dev/null "$r"/etc/systemd/system-generators/systemd-sysv-generator
  ln -s /dev/null "$r"/etc/systemd/system/getty.target
  ln -s /lib/systemd/system/multi-user.target "$r"/etc/systemd/system/default.target
  ln -s /lib/systemd/system/ssh.service "$r"/etc/systemd/system/sshd.service
  ln -s /lib/systemd/system/ssh.service "$r"/etc/systemd/system/multi-user.target.wants/ssh.service
  printf '[Journal]\nStorage=persistent\nSystemMaxUse=64M\nRateLimitIntervalSec=0\n' > "$r"/etc/systemd/journald.conf.d/lab.conf
  echo "$n" > "$r"/etc/hostname
  { echo 127.0.0.1 localhost; cat "$LAB_STATE"/hosts; } > "$r"/etc/hosts
  rm -f "$r"/etc/{machine-id,resolv.conf}; : > "$r"/etc/resolv.conf
  tr -d - < /proc/sys/kernel/random/uuid > "$r"/etc/machine-id
  install -m 600 "$LAB_STATE"/key.pub "$r"/root/.ssh/authorized_keys
  add_user "$r" ops 2001; echo 'ops ALL=(ALL) NOPASSWD: ALL' > "$r"/etc/sudoers.d/lab; chmod 440 "$r"/etc/sudoers.d/lab
  add_user "$r" guest 2002   # no sudo
  install -m 600 "$LAB_STATE/$n.hostkey" "$r"/etc/ssh/ssh_host_ed25519_key
  printf '%s\n' 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' 'KbdInteractiveAuthentication no' \
    'UsePAM yes' 'UseDNS no' 'PrintMotd no' 'MaxStartups 100' 'MaxSessions 100' \
    'HostKey /etc/ssh/ssh_host_ed25519_key' 'Subsystem sftp /usr/lib/openssh/sftp-server' > "$r"/etc/ssh/sshd_config
  [ ! -d "$LAB_STATE"/seed ] || cp -a "$LAB_STATE"/seed/. "$r"/
}

supervise() { # in its own mount and network namespace, in the lab's cgroup: all below dies with its processes
  W=$LAB_STATE/w
  mkdir -p "$W"; mount -t tmpfs -o "mode=755,size=$LAB_TMPFS" lab "$W"  # hosts' writes stay in memory and vanish with the namespace
  mount -t tmpfs -o mode=755 labrun /run                              # so ip netns and nspawn leave nothing in the real /run
  mount -t cgroup2 labcg /sys/fs/cgroup                               # hosts see a pure cgroup v2 system
  ip link set lo up; ip link add br0 type bridge; ip addr add "$LAB_NET.1/24" dev br0; ip link set br0 up
  local i n a rc bind=()
  [ -z "$LAB_BIND" ] || bind=(--bind-ro="$LAB_BIND")
  for ((i = 1; i <= LAB_HOSTS; i++)); do
    n=h$i a=$LAB_NET.$((10 + i))
    prepare_host "$n"
    ip netns add "$n"; ip link add "v-$n" type veth peer name eth0 netns "$n"; ip link set "v-$n" master br0 up
    ip -n "$n" link set lo up; ip -n "$n" addr add "$a/24" dev eth0; ip -n "$n" link set eth0 up
    mkdir "/sys/fs/cgroup/$CG/$n"
    # With --keep-unit, nspawn leaves a host's reboot to its caller (status 133); a host's poweroff is final,
    # and a power cut (see reset) is told from a death by its mark.
    while :; do
      rc=0; ( echo "$BASHPID" > "/sys/fs/cgroup/$CG/$n/cgroup.procs"; echo "$BASHPID" > "$LAB_STATE/$n.nspawn"
        exec systemd-nspawn --quiet --boot --register=no --keep-unit --settings=no --machine="$n" --directory="$W/$n/root" \
          --network-namespace-path="/run/netns/$n" --resolv-conf=off --timezone=off --link-journal=no \
          --console=read-only --kill-signal=SIGRTMIN+3 ${bind[@]+"${bind[@]}"} ) || rc=$?
      if [ -e "$LAB_STATE/$n.reset" ]; then rm -f "$LAB_STATE/$n.reset"; elif [ $rc != 133 ]; then break; fi
      # the killed are gone a moment after their leader
      for ((t = 0; t < 200; t++)); do find "/sys/fs/cgroup/$CG/$n" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null && break; sleep 0.05; done
    done </dev/null >> "$LAB_STATE/$n.console" 2>&1 &
  done
  wait
}

up() {
  local i n a t0=$EPOCHREALTIME deadline
  [ "$(id -u)" = 0 ] || { say "needs root"; exit 77; }
  for i in systemd-nspawn /usr/sbin/sshd ip unshare nsenter ssh-keygen; do command -v "$i" >/dev/null || { say "missing: $i"; exit 77; }; done
  mkdir -p "$LAB_STATE"; chmod 700 "$LAB_STATE"; touch "$LAB_STATE"/{.lab,hosts,known_hosts,ssh_config}
  ssh-keygen -q -t ed25519 -N '' -C lab -f "$LAB_STATE"/key
  for ((i = 1; i <= LAB_HOSTS; i++)); do
    n=h$i a=$LAB_NET.$((10 + i)); echo "$a $n" >> "$LAB_STATE"/hosts
    ssh-keygen -q -t ed25519 -N '' -C "$n" -f "$LAB_STATE/$n.hostkey"
    echo "$n,$a $(cut -d' ' -f1,2 "$LAB_STATE/$n.hostkey.pub")" >> "$LAB_STATE"/known_hosts
    printf 'Host %s %s\n  HostName %s\n' "$n" "$a" "$a" >> "$LAB_STATE"/ssh_config
  done
  printf 'Host *\n  User root\n  IdentityFile %s/key\n  IdentitiesOnly yes\n  UserKnownHostsFile %s/known_hosts\n  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 2\n' \
    "$LAB_STATE" "$LAB_STATE" >> "$LAB_STATE"/ssh_config
  # the cgroup is joined before the exec, so nothing starts outside it
  setsid unshare --mount --net --propagation private bash -c 'mkdir -p "$LAB_STATE/cg"; mount -t cgroup2 none "$LAB_STATE/cg"
    mkdir -p "$LAB_STATE/cg/$1/sup"; echo $$ > "$LAB_STATE/cg/$1/sup/cgroup.procs"; umount "$LAB_STATE/cg"; exec bash "$2" _supervise' \
    _ "$CG" "$SELF" </dev/null > "$LAB_STATE"/supervisor.log 2>&1 &
  echo $! > "$LAB_STATE"/pid; disown
  deadline=$((SECONDS + LAB_BOOT_TIMEOUT))
  for ((i = 1; i <= LAB_HOSTS; i++)); do
    until n=$(in_net ssh -F "$LAB_STATE"/ssh_config "h$i" systemctl is-system-running --wait </dev/null 2>"$LAB_STATE"/ssh.err) || [ "${n:-}" = degraded ]; do
      if ! kill -0 "$(cat "$LAB_STATE"/pid)" 2>/dev/null || ((SECONDS > deadline)); then
        say "h$i did not boot: ${n:-no answer}"; tail -n 30 "$LAB_STATE"/{supervisor.log,"h$i.console",ssh.err} >&2 || true; down; exit 1
      fi
      sleep 0.05
    done
    a=$((${EPOCHREALTIME/./} - ${t0/./})); say "h$i $LAB_NET.$((10 + i)) $n after $((a / 1000)) ms"
  done
}

join() { with_cg 'mkdir -p $CGROOT/cmd; echo '"$1"' > $CGROOT/cmd/cgroup.procs'; }  # so that down ends what exec left behind
in_net() { nsenter --net="/proc/$(cat "$LAB_STATE"/pid)/ns/net" -- "$@"; }

in_host() { # HOST CMD...
  local nspawn init; nspawn=$(cat "$LAB_STATE/$1.nspawn"); init=$(tr -d ' ' < "/proc/$nspawn/task/$nspawn/children"); shift
  exec nsenter --target "$init" --mount --uts --ipc --net --pid --root --wd -- "$@"
}

reset() { # HOST: the mark goes first, so that the loop in supervise boots it again
  touch "$LAB_STATE/$1.reset"
  with_cg 'echo 1 > $CGROOT/'"$1"'/cgroup.kill'
}

down() { # cgroup.kill ends supervisor and hosts at once; with the last process go its mounts, bridge and namespaces
  [ ! -e "$LAB_STATE" ] || [ -e "$LAB_STATE"/.lab ] || { say "$LAB_STATE is no lab folder"; exit 1; }
  with_cg '[ -d $CGROOT ] || exit 0
    pids=$(find $CGROOT -name cgroup.procs -exec cat {} +); echo 1 > $CGROOT/cgroup.kill
    for ((i = 0; i < 200; i++)); do
      find $CGROOT -depth -type d -exec rmdir {} + 2>/dev/null || true
      left=; for p in $pids; do s=$(cut -d")" -f2 /proc/$p/stat 2>/dev/null) && case $s in " Z"*) ((i > 60)) || left=$p ;; *) left=$p ;; esac; done
      [ -d $CGROOT ] || [ -n "$left" ] || exit 0
      sleep 0.05
    done; echo "lab: $CGROOT does not end (pid $left)" >&2; exit 1'
  rm -rf --one-file-system "$LAB_STATE"
}

case ${1:-} in
  up | down) "$1" ;;
  exec) shift; join $$; in_net=$(cat "$LAB_STATE"/pid); exec nsenter --net="/proc/$in_net/ns/net" -- "$@" ;;
  in) shift; in_host "$@" ;;
  link) in_net ip link set "v-$2" "$3" ;;
  reset) reset "$2" ;;
  _supervise) supervise ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$SELF"; exit 2 ;;
esac
