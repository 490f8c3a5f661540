#include "coordinator/residency/start_report.h"

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

std::string PhaseOfWorkers(const StartProgress& progress) {
  if (progress.num_come < progress.num_workers)
    return absl::StrCat(progress.num_come, " of ", progress.num_workers, " workers have come");
  if (!progress.have_weights) return "its workers read the weights";
  return "its workers have the weights, and prepare the KV cache";
}

std::string PhaseOf(const StartProgress& progress) {
  switch (progress.phase) {
    case StartPhase::kFiles:
      return "the headers of its files are read";
    case StartPhase::kBegins:
      return "its files are there, and its workers come next";
    case StartPhase::kWorkers:
      return PhaseOfWorkers(progress);
    case StartPhase::kText:
      return "its tokenizer is read";
    case StartPhase::kAdapters:
      return "its workers read adapters";
    case StartPhase::kEnds:
      return "all is read, and it will be served at once";
  }
  return "";
}

}  // namespace

StateReport ReportStart(const StartProgress& progress, absl::Time since) {
  StateReport report = {.what = absl::StrCat("The model is loading: ", PhaseOf(progress), "."),
                        .why = "the server has started",
                        .since = since,
                        .way_out = "it ends by itself"};
  const bool waits = progress.phase == StartPhase::kWorkers && progress.num_come < progress.num_workers;
  if (waits && progress.cluster_port > 0)
    report.way_out = absl::StrCat(
        "the missing workers, started with --coordinator=HOST:", progress.cluster_port, " of this host");
  return report;
}

}  // namespace somnus
