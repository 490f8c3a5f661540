"""The man page: what `coordinator --help=all` and the commands' --help print, as roff."""
import time


def roff(name, version, help_text, commands, times):
    """commands: (name, help text) of each. times: seconds since 1970, whose day the page has."""
    day = time.strftime("%Y-%m-%d", time.gmtime(times))
    sections = "".join(f".SS {plain(command)}\n.nf\n{plain(text)}\n.fi\n" for command, text in commands)
    return (
        f'.TH {name.upper()} 1 "{day}" "somnus {version}"\n'
        f".SH NAME\n{name} \\- serves large language models, and lets them sleep\n"
        f".SH SYNOPSIS\n.B {name}\nserve MODEL [flags]\n.br\n.B {name}\nCOMMAND [flags]\n"
        f".SH COMMANDS\n{sections}"
        f".SH FLAGS OF THE SERVER\n.nf\n{plain(help_text)}\n.fi\n")


def plain(text):
    """Text that roff shows unchanged."""
    lines = [line.replace("\\", "\\e").replace("-", "\\-") for line in text.rstrip("\n").split("\n")]
    # A line that begins with a dot or an apostrophe would be a request.
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)
