"""How the worker program gets to a Python that has nothing of it (pure).

A short stub stands in the command line that starts it. It looks for this version's bundle in the
workspace, asks for it once if it is not there (`NEED` on stdout, `packed` on stdin), and runs it.
"""

from __future__ import annotations

import zlib

NEED = b"runner-boot/1 need\n"

# Nothing imports its way into a bundle's bytecode: importlib does not see that a nearly full disk
# took half of a .pyc, and then it is broken for ever. So the stub compiles, for the Python it runs
# in, and keeps what reads back; without room the program is compiled in memory each time.
_STUB = """
import os,sys
sys.dont_write_bytecode=True
d={digest!r}
w=os.environ.get("RUNNER_WORKSPACE")
w=w or os.path.join(os.path.expanduser("~"),".local/share/runner/workspace")
p=os.path.join(w,".runner","bundles",d)
k=os.path.join("__pycache__",sys.implementation.cache_tag+".done")
def c(t):
    import importlib.util,marshal,struct
    def put(n,b):
        m="%s.tmp%d"%(n,os.getpid())
        try:
            os.makedirs(os.path.dirname(n),exist_ok=True)
            with open(m,"wb",0) as o:
                v=memoryview(b)
                while v: v=v[o.write(v):]
            with open(m,"rb") as o:
                r=o.read()
                if r!=b: raise OSError(28,"short")
                if b: marshal.loads(r[16:])
            os.rename(m,n)
            return True
        except (OSError,EOFError,ValueError):
            try: os.unlink(m)
            except OSError: pass
    for f,_,ns in os.walk(t):
        for n in ns:
            s=os.path.join(f,n)
            if not n.endswith(".py"): continue
            g=importlib.util.cache_from_source(s,optimization="")
            if os.path.exists(g): continue
            with open(s,"rb") as o: b=o.read()
            h=struct.pack("<III",0,int(os.stat(s).st_mtime),len(b))
            x=marshal.dumps(compile(b,os.path.join(p,os.path.relpath(s,t)),"exec",dont_inherit=True))
            if not put(g,importlib.util.MAGIC_NUMBER+h+x): return
    put(os.path.join(t,k),b"")
if not os.path.isdir(p):
    os.write(1,{need!r})
    def r(n):
        b=b""
        while len(b)<n:
            c=os.read(0,n-len(b))
            if not c: sys.exit(3)
            b+=c
        return b
    b=r(int(r(8)))
    import hashlib,json,zlib
    b=zlib.decompress(b)
    if hashlib.sha256(b).hexdigest()!=d: sys.exit("runner: the worker program arrived damaged")
    os.makedirs(w,0o700,exist_ok=True)
    os.makedirs(os.path.dirname(p),exist_ok=True)
    t="%s.tmp%d"%(p,os.getpid())
    try:
        for n,s in json.loads(b).items():
            f=os.path.join(t,n)
            os.makedirs(os.path.dirname(f),exist_ok=True)
            with open(f,"w",encoding="utf-8",newline="") as o: o.write(s)
        c(t)
    except BaseException as e:
        import shutil
        shutil.rmtree(t,True)
        sys.exit("runner: no worker program in %s: %s"%(w,e))
    try: os.rename(t,p)
    except OSError:
        import shutil
        shutil.rmtree(t,True)
elif not os.path.exists(os.path.join(p,k)): c(p)
sys.path.insert(0,p)
sys.argv[:]=[p,"serve"]
m=os.path.join(p,"__main__.py")
exec(compile(open(m).read(),m,"exec"),{{"__name__":"__main__","__file__":m}})
"""


def stub_of(digest: str) -> str:
    """The stub for the bundle of that digest, as one word for `python3 -c`."""
    return as_word(_STUB.format(digest=digest, need=NEED))


def as_word(program: str) -> str:
    """A program for `python3 -c` of harmless characters only, whatever shell the account has."""
    return f'exec(bytes.fromhex("{program.strip().encode().hex()}"))'


def packed(bundle: bytes) -> bytes:
    """A bundle as a stub reads it: its length in 8 digits, then itself, compressed."""
    zipped = zlib.compress(bundle, 6)
    return b"%08d" % len(zipped) + zipped
