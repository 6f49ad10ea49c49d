# The standard library's file functions; see python.py.
. "$PROGRAMS/expect.sh"
cd "$MOUNT"
/usr/bin/python3 -W ignore "$PROGRAMS/inside/python.py"
unset PYTHONDONTWRITEBYTECODE
note the interpreter on modules in the pool
mkdir package
echo 'answer = 42' >package/__init__.py
gives "import from the pool" 42 /usr/bin/python3 -c 'import package; print(package.answer)'
[[ -d package/__pycache__ ]] || fail "compiled modules are kept"
/usr/bin/python3 -m venv --without-pip env
gives "virtual environment" "$MOUNT/env" env/bin/python -c 'import sys; print(sys.prefix)'
/usr/bin/python3 -m compileall -q package
/usr/bin/python3 -m zipfile -c package.zip package
gives "import from an archive" 42 /usr/bin/python3 -c 'import sys; sys.path.insert(0, "package.zip"); import package; print(package.answer)'
