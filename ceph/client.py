"""A client that changes objects with attributes and omaps, and compares what it reads, until a file
exists: client.py CONF NAME FILE. What it wrote is in NAME.pickle, for the next time."""
import os
import pickle
import random
import sys

import rados

conf, name, stop = sys.argv[1:]
cluster = rados.Rados(conffile=conf, name="client.admin")
cluster.connect()
pool = cluster.open_ioctx("rbd")
objects = {}
if os.path.exists(f"{name}.pickle"):
    with open(f"{name}.pickle", "rb") as file:
        objects = pickle.load(file)


def value():
    return os.urandom(random.choice((1, 20, 300, 3000, 20000, 50000)))


def change(key):
    contents, attribute, omap = objects.get(key, (b"", b"", {}))
    at, data, attribute = random.randrange(len(contents) + 1), value(), value()
    new = {f"{random.randrange(20):040}": value() for _ in range(4)}
    old = tuple(random.sample(sorted(omap), min(2, len(omap))))
    with rados.WriteOpCtx() as op:
        op.write(data, at)
        op.set_xattr("attribute", attribute)
        pool.remove_omap_keys(op, old)
        pool.set_omap(op, tuple(new), tuple(new.values()))
        pool.operate_write_op(op, key)
    contents = contents[:at] + data + contents[at + len(data):]
    omap = {k: v for k, v in omap.items() if k not in old} | new
    objects[key] = contents, attribute, omap


def compare(key):
    with rados.ReadOpCtx() as op:
        found, _ = pool.get_omap_vals(op, "", "", 100)
        pool.operate_read_op(op, key)
        omap = dict(found)
    found = pool.read(key, 1 << 20), pool.get_xattr(key, "attribute"), omap
    for what, one, other in zip(("contents", "attribute", "omap"), found, objects[key]):
        if one != other:
            sys.exit(f"{key}: its {what} differ")


for key in objects:
    compare(key)
count = 0
while not os.path.exists(stop):
    change(f"{name}{random.randrange(100)}")
    compare(random.choice(list(objects)))
    count += 1
for key in objects:
    compare(key)
with open(f"{name}.pickle", "wb") as file:
    pickle.dump(objects, file)
print(f"{name}: {count} changes, {len(objects)} objects compared")
