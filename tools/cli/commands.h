#pragma once
// The subcommands of `somnus`. Each Run... parses its own arguments and answers the process's exit code
// (terminal.h).

#include <string>
#include <vector>

#include "tools/cli/args.h"

namespace somnus::cli {

const Command& ServeCommand();
const Command& ChatCommand();
const Command& GenerateCommand();
const Command& StatusCommand();
const Command& SleepCommand();
const Command& WakeUpCommand();

// Does not return when all is well: becomes the coordinator, with the same process id.
int RunServe(const std::vector<std::string>& args);
int RunChat(const std::vector<std::string>& args);
int RunGenerate(const std::vector<std::string>& args);
int RunStatus(const std::vector<std::string>& args);
int RunSleep(const std::vector<std::string>& args);
int RunWakeUp(const std::vector<std::string>& args);

}  // namespace somnus::cli
