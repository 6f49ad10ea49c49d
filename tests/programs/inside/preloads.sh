# Programs that are preloaded with other libraries, too.
. "$PROGRAMS/expect.sh"
mkdir "$MOUNT/preloads"
cd "$MOUNT/preloads"

note fakeroot
cat >package.sh <<'S'
touch f
chmod 4711 f
chown 7:8 f
mknod null c 1 3
stat -c '%A %u %g %n' f null
S
gives "what it pretends" $'-rws--x--x 7 8 f\ncrw-r--r-- 0 0 null' fakeroot sh package.sh
gives "and no more" "regular empty file" stat -c %F null

note fakechroot
mkdir -p root/bin root/etc
cp /bin/dash root/bin/sh
cp /bin/cat root/bin
echo inside >root/etc/name
gives "a file below what it takes for the root" inside fakechroot chroot "$PWD/root" /bin/sh -c 'cat /etc/name'
gives "one that it makes" made fakechroot chroot "$PWD/root" /bin/sh -c 'echo made >/etc/new; cat /etc/new'
gives "where that is" made cat root/etc/new

note faketime
# Newer ones take their difference from what stat tells, too.
faketime '2020-01-02 03:04:05' touch then
gives "a file's time" 2020-01-02 date -r then +%F

note jemalloc
jemalloc=$(echo /usr/lib/*/libjemalloc.so.2)
export LD_PRELOAD=$jemalloc${LD_PRELOAD:+:$LD_PRELOAD}
gives "threads and files" 400 python3 -c '
import threading
def work(number):
    for step in range(100):
        with open(f"file{number}", "ab") as file:
            file.write(bytes([step]) * 1)
workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(sum(len(open(f"file{number}", "rb").read()) for number in range(4)))'
