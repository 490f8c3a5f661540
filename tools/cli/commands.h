#pragma once
// The subcommands of `somnus`. Each Run... parses its own arguments and returns the process's exit code
// (terminal.h).

#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"

namespace somnus::cli {

// Does not return on success: the process becomes the coordinator and keeps the process id.
int RunServe(const std::vector<std::string>& args);
int RunRun(const std::vector<std::string>& args);
int RunList(const std::vector<std::string>& args);
int RunModelsAdd(const std::vector<std::string>& args);
int RunModelsRemove(const std::vector<std::string>& args);
int RunLogs(const std::vector<std::string>& args);
int RunExplain(const std::vector<std::string>& args);
// Does not return on success, either: the process becomes serving_bench.
int RunBench(const std::vector<std::string>& args);
int RunChat(const std::vector<std::string>& args);
int RunGenerate(const std::vector<std::string>& args);
int RunStatus(const std::vector<std::string>& args);
int RunModels(const std::vector<std::string>& args);
int RunTop(const std::vector<std::string>& args);
int RunSleep(const std::vector<std::string>& args);
int RunPause(const std::vector<std::string>& args);
int RunResume(const std::vector<std::string>& args);
int RunWakeUp(const std::vector<std::string>& args);
int RunReloadWeights(const std::vector<std::string>& args);
int RunResetPrefixCache(const std::vector<std::string>& args);
int RunPrefixes(const std::vector<std::string>& args);
int RunRevive(const std::vector<std::string>& args);
int RunAbortCall(const std::vector<std::string>& args);
int RunRoll(const std::vector<std::string>& args);
int RunStop(const std::vector<std::string>& args);
int RunCompletions(const std::vector<std::string>& args);
int RunDoctor(const std::vector<std::string>& args);

// Runs the command of this name: -1 where there is none.
int RunCommand(const std::string& name, const std::vector<std::string>& args);
// "NAME\tSUMMARY" in a line for each command.
std::string CommandNames();

// Parses `args` into the table's variables. Returns an exit code when the command ends here: after --help,
// --version, or a wrong flag, which is reported on stderr.
std::optional<int> ParseCommand(const FlagTable& table, const std::vector<std::string>& args,
                                std::vector<std::string>* positional = nullptr);

}  // namespace somnus::cli
