"""The man page: what `coordinator --help=all` prints, as roff."""
import time


def roff(name, version, help_text, times):
    """times: seconds since 1970, whose day the page has."""
    day = time.strftime("%Y-%m-%d", time.gmtime(times))
    lines = [line.replace("\\", "\\e").replace("-", "\\-") for line in help_text.rstrip("\n").split("\n")]
    # A line that begins with a dot or an apostrophe would be a request.
    body = "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)
    return (
        f'.TH {name.upper()} 1 "{day}" "somnus {version}"\n'
        f".SH NAME\n{name} \\- serves large language models, and lets them sleep\n"
        f".SH SYNOPSIS\n.B {name}\nserve MODEL [flags]\n.br\n.B {name}\nCOMMAND [flags]\n.SH FLAGS OF THE SERVER\n.nf\n{body}\n.fi\n"
        f".SH COMMANDS\n.B {name} help\nlists the other commands.\n")
