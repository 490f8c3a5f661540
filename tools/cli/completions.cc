// The command completions: scripts for shells, made from the commands' own tables of flags.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/programs.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr size_t kShortHelpBytes = 70;
constexpr char kNamesOfModels[] = "somnus list --names 2>/dev/null";
// Commands whose first word is a model.
constexpr absl::string_view kTakeModels[] = {"serve", "run", "doctor"};

struct FlagWords {
  std::string name;  // "--port"
  std::string value, help;
  // The words of "a|b|c"; empty: any value.
  std::vector<std::string> Choices() const {
    if (!absl::StrContains(value, '|') || absl::StrContains(value, ':')) return {};
    return absl::StrSplit(value, '|');
  }
};

struct Command {
  std::string name, summary;
  std::vector<FlagWords> flags;

  bool TakesModel() const {
    for (const absl::string_view one : kTakeModels) {
      if (name == one) return true;
    }
    return false;
  }
};

// The first words of a help text.
std::string Short(const std::string& help) {
  std::string text = help.substr(0, help.find_first_of(";:("));
  if (text.size() > kShortHelpBytes)
    text = absl::StrCat(text.substr(0, text.rfind(' ', kShortHelpBytes)), " ...");
  return text;
}

// Runs the command within this process, since a process for each command would take seconds, and returns the
// output.
absl::StatusOr<std::string> OutputWithin(const std::string& command, const std::vector<std::string>& args) {
  const int file = memfd_create("somnus-completions", MFD_CLOEXEC);
  if (file < 0) return absl::InternalError(absl::StrCat("memfd_create: ", strerror(errno)));
  fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  dup2(file, STDOUT_FILENO);
  RunCommand(command, args);
  fflush(stdout);
  dup2(before, STDOUT_FILENO);
  close(before);
  std::string output;
  char buffer[16384];
  lseek(file, 0, SEEK_SET);
  for (ssize_t n; (n = read(file, buffer, sizeof(buffer))) > 0;) output.append(buffer, n);
  close(file);
  return output;
}

// The flags of `somnus COMMAND`, as its table has them. Two commands become other programs.
absl::StatusOr<std::vector<FlagWords>> FlagsOf(const std::string& self, const std::string& command) {
  const std::vector<std::string> args = {"--help=flags"};
  const bool leaves = command == "serve" || command == "bench";
  ASSIGN_OR_RETURN(const std::string listed,
                   leaves ? OutputOf(self, {command, args[0]}) : OutputWithin(command, args));
  std::vector<FlagWords> flags = {{"--help", "", "explains the command"}};
  for (const absl::string_view line : absl::StrSplit(listed, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits('\t', 2));
    if (parts.size() == 3 && absl::StartsWith(parts[0], "--"))
      flags.push_back({parts[0], parts[1], parts[2]});
  }
  return flags;
}

absl::StatusOr<std::vector<Command>> Commands() {
  ASSIGN_OR_RETURN(const std::string self, OwnPath());
  const std::string names = CommandNames();
  std::vector<Command> commands;
  for (const absl::string_view line : absl::StrSplit(names, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits('\t', 1));
    Command command = {parts.first, parts.second, {}};
    ASSIGN_OR_RETURN(command.flags, FlagsOf(self, command.name));
    commands.push_back(std::move(command));
  }
  return commands;
}

template <typename Of>
std::string Joined(const std::vector<Command>& commands, const Of& of) {
  return absl::StrJoin(commands, "",
                       [&](std::string* out, const Command& one) { absl::StrAppend(out, of(one)); });
}

std::string Words(const std::vector<Command>& commands) {
  return absl::StrJoin(commands, " ",
                       [](std::string* out, const Command& one) { absl::StrAppend(out, one.name); });
}

std::string FlagNames(const Command& command) {
  return absl::StrJoin(command.flags, " ",
                       [](std::string* out, const FlagWords& one) { absl::StrAppend(out, one.name); });
}

// The words of flags that take one of several: lines of a case statement.
std::string BashChoices(const Command& command) {
  std::string lines;
  for (const FlagWords& flag : command.flags) {
    if (!flag.Choices().empty())
      absl::StrAppend(&lines, "    '", command.name, " ", flag.name, "') values='",
                      absl::StrJoin(flag.Choices(), " "), "' ;;\n");
  }
  return lines;
}

// bash takes the '=' of --flag=value for a word of its own.
constexpr char kBash[] = R"sh(# Made by: somnus completions bash
_somnus() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  local flags='' values=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '@COMMANDS@' -- "$word"))
    return
  fi
  if [[ $word == '=' ]]; then
    word=''
  elif [[ $before == '=' ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  case "$command $before" in
@CHOICES@  esac
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
    return
  fi
  case $command in
@FLAGS@  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  elif [[ $command == models && $COMP_CWORD == 2 ]]; then
    COMPREPLY=($(compgen -W 'add remove' -- "$word"))
  elif [[ ' @TAKE_MODELS@ ' == *" $command "* ]]; then
    COMPREPLY=($(compgen -W "$(@NAMES@)" -- "$word"))
  elif [[ $command == completions ]]; then
    COMPREPLY=($(compgen -W 'bash zsh fish' -- "$word"))
  fi
}
complete -o default -F _somnus somnus
)sh";

std::string Bash(const std::vector<Command>& commands) {
  const std::string flags = Joined(commands, [](const Command& one) {
    return absl::StrCat("    ", one.name, ") flags='", FlagNames(one), "' ;;\n");
  });
  return absl::StrReplaceAll(kBash, {{"@COMMANDS@", Words(commands)},
                                     {"@CHOICES@", Joined(commands, BashChoices)},
                                     {"@FLAGS@", flags},
                                     {"@TAKE_MODELS@", absl::StrJoin(kTakeModels, " ")},
                                     {"@NAMES@", kNamesOfModels}});
}

// Within single quotes of zsh: "name:help".
std::string ZshEntry(const std::string& name, const std::string& help) {
  return absl::StrCat("'", absl::StrReplaceAll(name, {{":", "\\:"}}), ":",
                      absl::StrReplaceAll(Short(help), {{"'", "'\\''"}}), "'");
}

// The flags of a command: a branch of a case statement.
std::string ZshFlags(const Command& command) {
  std::string lines = absl::StrCat("    ", command.name, ")\n      flags=(\n");
  for (const FlagWords& flag : command.flags)
    absl::StrAppend(&lines, "        ", ZshEntry(flag.name, flag.help), "\n");
  return absl::StrCat(lines, "      ) ;;\n");
}

// The words of flags that take one of several: lines of a case statement.
std::string ZshChoices(const Command& command) {
  std::string lines;
  for (const FlagWords& flag : command.flags) {
    if (!flag.Choices().empty())
      absl::StrAppend(&lines, "    '", command.name, " ", flag.name, "') values=(",
                      absl::StrJoin(flag.Choices(), " "), ") ;;\n");
  }
  return lines;
}

constexpr char kZsh[] = R"sh(#compdef somnus
# Made by: somnus completions zsh
_somnus() {
  local before=$words[CURRENT-1]
  local -a commands flags names values
  commands=(
@COMMANDS@  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  if [[ $PREFIX == --*=* ]]; then
    before=${PREFIX%%=*}
    compset -P '*='
  fi
  case "$words[2] $before" in
@CHOICES@  esac
  if (($#values)); then
    compadd -a values
    return
  fi
  case $words[2] in
@FLAGS@  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o flag flags
  elif [[ $words[2] == models && $CURRENT -eq 3 ]]; then
    compadd add remove
  elif [[ $words[2] == completions ]]; then
    compadd bash zsh fish
  elif [[ ' @TAKE_MODELS@ ' == *" $words[2] "* ]]; then
    names=(${(f)"$(@NAMES@)"})
    compadd -a names
    _files
  else
    _files
  fi
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
  _somnus "$@"
else
  compdef _somnus somnus
fi
)sh";

std::string Zsh(const std::vector<Command>& commands) {
  const std::string names = Joined(commands, [](const Command& one) {
    return absl::StrCat("    ", ZshEntry(one.name, one.summary), "\n");
  });
  return absl::StrReplaceAll(kZsh, {{"@COMMANDS@", names},
                                    {"@CHOICES@", Joined(commands, ZshChoices)},
                                    {"@FLAGS@", Joined(commands, ZshFlags)},
                                    {"@TAKE_MODELS@", absl::StrJoin(kTakeModels, " ")},
                                    {"@NAMES@", kNamesOfModels}});
}

std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string Fish(const std::vector<Command>& commands) {
  std::string text = "# Made by: somnus completions fish\n";
  for (const Command& command : commands) {
    absl::StrAppend(&text, "complete -c somnus -f -n __fish_use_subcommand -a ", command.name, " -d ",
                    FishQuoted(Short(command.summary)), "\n");
    const std::string when =
        absl::StrCat("complete -c somnus -n '__fish_seen_subcommand_from ", command.name, "' ");
    for (const FlagWords& flag : command.flags) {
      const std::vector<std::string> choices = flag.Choices();
      const std::string value = flag.value.empty() ? ""
                                : choices.empty()
                                    ? " -r"
                                    : absl::StrCat(" -x -a ", FishQuoted(absl::StrJoin(choices, " ")));
      absl::StrAppend(&text, when, "-l ", flag.name.substr(2), value, " -d ", FishQuoted(Short(flag.help)),
                      "\n");
    }
    if (command.TakesModel()) absl::StrAppend(&text, when, "-a '(", kNamesOfModels, ")'\n");
    if (command.name == "models") absl::StrAppend(&text, when, "-a 'add remove'\n");
    if (command.name == "completions") absl::StrAppend(&text, when, "-f -a 'bash zsh fish'\n");
  }
  return text;
}

absl::StatusOr<int> Write(const std::string& shell) {
  if (shell != "bash" && shell != "zsh" && shell != "fish")
    return absl::InvalidArgumentError("which shell? bash, zsh or fish");
  ASSIGN_OR_RETURN(const std::vector<Command> commands, Commands());
  const std::string text = shell == "bash" ? Bash(commands) : shell == "zsh" ? Zsh(commands) : Fish(commands);
  return fputs(text.c_str(), stdout) < 0 ? kServerError : kOk;
}

}  // namespace

int RunCompletions(const std::vector<std::string>& args) {
  const FlagTable table = {
      .program = "somnus completions",
      .usage = "somnus completions bash|zsh|fish",
      .about =
          "Writes what the shell needs to complete commands, flags and names of models. The Debian package\n"
          "installs it for all three.\n\n"
          "  source <(somnus completions bash)                                     (in ~/.bashrc)\n"
          "  source <(somnus completions zsh)                                      (in ~/.zshrc, after "
          "compinit)\n"
          "  somnus completions fish > ~/.config/fish/completions/somnus.fish",
      .groups = {},
      .max_positional = 1};
  std::vector<std::string> shells;
  if (const auto code = ParseCommand(table, args, &shells)) return *code;
  return ExitCode(Write(shells.empty() ? "" : shells[0]));
}

}  // namespace somnus::cli
