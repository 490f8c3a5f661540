// The command doctor.
#include <stdio.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/discovery.h"
#include "base/start_limits.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/models_folder.h"
#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"
#include "tools/doctor/report_text.h"

namespace somnus::cli {
namespace {

constexpr int kNameWidth = 15;  // of the names at the start of DoctorText's lines

struct DoctorOptions {
  int32_t workers = 1;
  bool measure = true;
  bool json = false;
};

absl::StatusOr<int> Examine(const DoctorOptions& options, const std::vector<std::string>& models) {
  DoctorReport report;
  ASSIGN_OR_RETURN(report.host, ReportHost(options.workers));
  if (!models.empty()) {
    ASSIGN_OR_RETURN(const std::string path, FindModelPath(ModelsFolder(ProcessEnvironment()), models[0]));
    ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
    report.model = ReportModel(*checkpoint);
  }
  if (options.measure) {
    RETURN_IF_ERROR(CheckStartLimits({.threads = static_cast<int>(ProbeThreads(report.host).size())}));
    report.ceilings = MeasureCeilings(report.host);
  }
  std::string text = DoctorJson(report);
  if (!options.json) {
    text.clear();
    for (const absl::string_view line : absl::StrSplit(DoctorText(report), '\n', absl::SkipEmpty()))
      absl::StrAppend(&text, Wrap(line, OutputColumns(), kNameWidth), "\n");
  }
  WriteModelText(text);
  return kOk;
}

}  // namespace

int RunDoctor(const std::vector<std::string>& args) {
  DoctorOptions options;
  FlagTable table;
  table.program = "somnus doctor";
  table.usage = "somnus doctor [MODEL] [flags]";
  table.about =
      "Says what workers on this host would run on, why, whether MODEL fits into the memory that is free, "
      "and\n"
      "how fast MODEL can be here at best: what its weights take to be read once, and its products to be\n"
      "computed. Needs no server.";
  table.max_positional = 1;
  table.groups = {{"Flags",
                   {Flag::Int("workers", &options.workers, 1, 64, "local workers that divide the host"),
                    Flag::Switch("measure", &options.measure, "measure the ceilings, which takes a second"),
                    Flag::Switch("json", &options.json, "print JSON")}}};
  std::vector<std::string> models;
  if (const auto exit_code = ParseCommand(table, args, &models)) return *exit_code;
  return ExitCode(Examine(options, models));
}

}  // namespace somnus::cli
