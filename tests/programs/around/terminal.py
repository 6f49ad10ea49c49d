"""Types at a shell on a pseudo-terminal and checks what comes back."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

PROMPT = b"ready> "


class Terminal:
    def __init__(self, command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp(command[0], command)
        self.seen = b""

    def wait_for(self, text, seconds=20):
        """Everything up to and with a text."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            try:
                piece = os.read(self.fd, 65536) if ready else b""
            except OSError:
                piece = b""
            if not piece:
                sys.exit(f"FAILED: waited in vain for {text!r}; seen: {self.seen!r}")
            self.seen += piece
        at = self.seen.index(text) + len(text)
        before, self.seen = self.seen[:at], self.seen[at:]
        return before

    def type(self, keys):
        os.write(self.fd, keys)

    def command(self, line):
        """Types a line and gives what it printed."""
        self.type(line.encode() + b"\r")
        self.wait_for(b"\n")
        return self.wait_for(PROMPT)


def expect(what, text, actual):
    if text.encode() not in actual:
        sys.exit(f"FAILED: {what}: {text!r} is missing in {actual!r}")
    print("--", what)


def main():
    terminal = Terminal(sys.argv[1:])
    terminal.wait_for(PROMPT)
    expect("a command", "42", terminal.command("cd $MOUNT; echo $((6*7)) | tee file"))
    terminal.type(b"sleep 100\r")
    terminal.wait_for(b"\n")
    time.sleep(0.5)
    terminal.type(b"\x03")
    terminal.wait_for(PROMPT)
    expect("Ctrl-C ends the program, not the shell", "130", terminal.command("echo $?"))
    terminal.type(b"cat >typed\r")
    terminal.wait_for(b"\n")
    time.sleep(0.5)
    terminal.type(b"some text\r\x04")
    terminal.wait_for(PROMPT)
    expect("typing into a file", "some text", terminal.command("cat typed"))
    terminal.type(b"sleep 100\r")
    terminal.wait_for(b"\n")
    time.sleep(0.5)
    terminal.type(b"\x1a")
    expect("Ctrl-Z stops", "Stopped", terminal.wait_for(PROMPT))
    expect("jobs", "sleep 100", terminal.command("jobs"))
    expect("background", "sleep 100", terminal.command("bg"))
    expect("kill a job", "Terminated", terminal.command("kill %1; wait %1"))
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    expect("window size", "33 77", terminal.command("stty size"))
    expect("is a terminal", "yes", terminal.command("test -t 0 && echo yes"))
    terminal.type(b"exit 3\r")
    _, status = os.waitpid(terminal.pid, 0)
    if os.waitstatus_to_exitcode(status) != 3:
        sys.exit(f"FAILED: exit status {status:#x}")


main()
