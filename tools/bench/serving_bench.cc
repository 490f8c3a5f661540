// serving_bench: puts load on an OpenAI-compatible server and measures the responses as clients see them.
#include <stdio.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/bench/serving/load_client.h"
#include "tools/bench/serving/options.h"
#include "tools/bench/serving/report.h"
#include "tools/bench/serving/workload.h"
#include "tools/probe/machine_probe.h"

namespace somnus::bench {
namespace {

using nlohmann::json;

json ToJson(const MachineState& state) {
  return {{"read_gbps_1t", state.read_gbps_1t},
          {"read_gbps_2t", state.read_gbps_2t},
          {"ping_pong_ns", state.ping_pong_ns}};
}

json ToJson(const BenchOptions& options) {
  return {{"base_url", absl::StrCat(options.tls ? "https://" : "http://", options.host, ":", options.port,
                                    options.base_path)},
          {"model", options.model},
          {"endpoint", options.chat ? "chat" : "completions"},
          {"num_requests", options.num_requests},
          {"concurrency", options.concurrency},
          {"request_rate", options.request_rate},
          {"input_len", {options.input.low, options.input.high}},
          {"output_len", {options.output.low, options.output.high}},
          {"dataset", options.dataset},
          {"in_order", options.in_order},
          {"temperature", options.temperature},
          {"seed", options.seed},
          {"ignore_eos", options.ignore_eos}};
}

absl::Status WriteJson(const std::string& path, const json& result) {
  const std::string text = result.dump(2) + "\n";
  if (path == "-") {
    std::cout << text;
    return absl::OkStatus();
  }
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrCat("--json ", path, ": cannot be written"));
}

// Returns whether every request got a whole answer.
absl::StatusOr<bool> Run(BenchOptions options) {
  ASSIGN_OR_RETURN(const Workload workload, Workload::Create(&options));
  ASSIGN_OR_RETURN(const std::vector<BenchRequest> warmup, workload.Make(options.warmup, /*stream=*/1));
  ASSIGN_OR_RETURN(const std::vector<BenchRequest> requests,
                   workload.Make(options.num_requests, /*stream=*/2));
  RETURN_IF_ERROR(RunLoad(options, warmup).status());
  json result = {{"options", ToJson(options)}};
  FILE* out = options.json == "-" ? stderr : stdout;
  if (options.probe) {
    const MachineState before = ProbeMachine();
    fprintf(out, "machine before    %s\n", ToString(before).c_str());
    result["machine_before"] = ToJson(before);
  }
  ASSIGN_OR_RETURN(const std::vector<RequestRecord> records, RunLoad(options, requests));
  const Report report = MakeReport(records, options.goodput);
  fputs(ToTable(report, options.goodput).c_str(), out);
  result["result"] = ToJson(report);
  if (options.probe) {
    const MachineState after = ProbeMachine();
    fprintf(out, "\nmachine after     %s\n", ToString(after).c_str());
    result["machine_after"] = ToJson(after);
  }
  if (!options.json.empty()) RETURN_IF_ERROR(WriteJson(options.json, result));
  return report.errors.empty();
}

int Main(int argc, const char* const* argv) {
  BenchOptions options;
  if (const auto code = ParseOptions(argc, argv, &options); code.has_value()) return *code;
  const absl::StatusOr<bool> all_answered = Run(options);
  if (all_answered.ok()) return *all_answered ? 0 : 1;
  fprintf(stderr, "error: %s\n", std::string(all_answered.status().message()).c_str());
  return absl::IsInvalidArgument(all_answered.status()) ? 2
         : absl::IsUnavailable(all_answered.status())   ? 3
                                                        : 1;
}

}  // namespace
}  // namespace somnus::bench

int main(int argc, char** argv) { return somnus::bench::Main(argc, argv); }
