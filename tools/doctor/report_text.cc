#include "tools/doctor/report_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/bytes_text.h"
#include "base/counted.h"
#include "tools/probe/machine_peak.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

std::string Line(absl::string_view name, absl::string_view text) {
  return absl::StrFormat("%-14s %s\n", name, text);
}

std::string CpuText(const HostReport& host) {
  std::string text = host.cpu_name.empty() ? "" : absl::StrCat(host.cpu_name, "; ");
  absl::StrAppend(&text, "may use ", Counted(static_cast<int64_t>(host.allowed.size()), "CPU"), " (",
                  CpuListText(host.allowed), ")");
  if (!host.siblings.empty() || !host.slow.empty()) {
    absl::StrAppend(&text, ", computes on ", host.allowed.size() - host.siblings.size() - host.slow.size(),
                    ": ");
    if (!host.siblings.empty())
      absl::StrAppend(&text, CpuListText(host.siblings), " share a core with others");
    if (!host.slow.empty())
      absl::StrAppend(&text, host.siblings.empty() ? "" : ", ", CpuListText(host.slow), " are slow");
  }
  if (host.quota > 0) absl::StrAppendFormat(&text, "; a quota pays for %.2f", host.quota);
  return text;
}

std::string IsaText(const HostReport& host) {
  return absl::StrCat(host.isa, host.isa_is_forced ? ", which SOMNUS_CPU_ISA names" : ", the best",
                      "; this CPU has ", absl::StrJoin(host.isas, ", "));
}

std::string MemoryText(const HostReport& host) {
  std::string text = absl::StrCat(BytesText(host.available_bytes), " available");
  if (host.huge_pages == "never") {
    absl::StrAppend(&text, "; huge pages are off, which makes a wake-up slower");
  } else if (!host.huge_pages.empty()) {
    absl::StrAppend(&text, "; huge pages: ", host.huge_pages);
  }
  return text;
}

std::string NodesText(const HostReport& host) {
  if (host.nodes.size() <= 1) return "one node";
  std::vector<std::string> nodes;
  for (const NumaNode& node : host.nodes)
    nodes.push_back(absl::StrCat("node ", node.id, ": CPUs ", CpuListText(node.cpus)));
  return absl::StrJoin(nodes, "; ");
}

std::string PlacementText(const Placement& placement) {
  return absl::StrCat(Counted(placement.num_threads, "thread"),
                      placement.first_cpu >= 0 ? ", pinned, " : ", ", placement.description);
}

std::string CeilingsText(const HostCeilings& ceilings) {
  return absl::StrFormat("%s: read %.1f GB/s, %s", Counted(ceilings.num_threads, "thread"),
                         ceilings.read_gbps, ToString(ceilings.peaks));
}

// The experts in memory, and the experts that a step reads; empty for a model without experts.
std::string ExpertsText(const ModelReport& model) {
  if (model.num_experts == 0) return "";
  return absl::StrFormat(
      "; %d of %d experts for each token: all are in memory, a step of one stream reads %.1f million "
      "parameters, %s in %s, %s in bfloat16",
      model.experts_per_token, model.num_experts, static_cast<double>(model.active_parameters) / 1e6,
      BytesText(model.step_stored_bytes), model.stored_type, BytesText(model.step_bf16_bytes));
}

std::string ModelText(const ModelReport& model) {
  const std::string reach =
      model.kv_reach == 0 ? "" : absl::StrCat(" of the last ", model.kv_reach, " of a sequence");
  return absl::StrCat(
      absl::StrFormat("%s: %.1f million parameters, %s in %s, %s in bfloat16; KV cache %s a token%s",
                      model.name, static_cast<double>(model.num_parameters) / 1e6,
                      BytesText(model.stored_bytes), model.stored_type, BytesText(model.bf16_bytes),
                      BytesText(model.kv_token_bytes), reach),
      ExpertsText(model));
}

std::string FitText(const ModelReport& model, int64_t available) {
  const auto of = [](const ModelFit& fit) {
    if (fit.lacking_bytes > 0) return absl::StrCat("lacks ", BytesText(fit.lacking_bytes));
    return absl::StrCat("fits, beside at most ", fit.kv_tokens, " tokens of KV cache");
  };
  const std::string as_stored = of(FitAsStored(model, available));
  if (!model.is_quantized) return as_stored;
  return absl::StrCat(as_stored, "; with --dequantize ", of(FitInBf16(model, available)));
}

std::string SpeedText(const ModelReport& model, const ModelSpeed& speed) {
  const auto of = [](double decode, double prompt) {
    return absl::StrFormat("one stream %.0f tokens/s, prompts %.0f tokens/s", decode, prompt);
  };
  const std::string in_16_bits = of(speed.decode_bf16, speed.prompt_bf16);
  if (!model.is_quantized) return in_16_bits;
  return absl::StrCat(of(speed.decode_stored, speed.prompt_stored), "; with --dequantize ", in_16_bits);
}

Json FitJson(const ModelFit& fit) {
  return {{"fits", fit.lacking_bytes == 0},
          {"lacking_bytes", fit.lacking_bytes},
          {"kv_cache_tokens", fit.kv_tokens}};
}

Json PlacementJson(const Placement& placement) {
  return {{"num_threads", placement.num_threads},
          {"pinned", placement.first_cpu >= 0},
          {"cpus", placement.cpus},
          {"thread_speeds", placement.thread_speeds},
          {"memory_nodes", placement.memory_nodes},
          {"description", placement.description}};
}

}  // namespace

std::string DoctorText(const DoctorReport& report) {
  std::string text = Line("CPU", CpuText(report.host));
  absl::StrAppend(&text, Line("instructions", IsaText(report.host)), Line("memory", MemoryText(report.host)),
                  Line("NUMA", NodesText(report.host)));
  for (size_t i = 0; i < report.host.placements.size(); ++i)
    absl::StrAppend(&text, Line(absl::StrCat("worker ", i), PlacementText(report.host.placements[i])));
  if (report.ceilings.has_value()) absl::StrAppend(&text, Line("ceilings", CeilingsText(*report.ceilings)));
  if (!report.model.has_value()) return text;
  absl::StrAppend(&text, Line("model", ModelText(*report.model)),
                  Line("in memory", FitText(*report.model, report.host.available_bytes)));
  if (!report.model->tokenizer_error.empty())
    absl::StrAppend(&text, Line("cannot serve", report.model->tokenizer_error));
  if (report.ceilings.has_value()) {
    const ModelSpeed speed = BestSpeed(*report.model, *report.ceilings);
    absl::StrAppend(&text, Line("at best", SpeedText(*report.model, speed)));
  }
  return text;
}

std::string DoctorJson(const DoctorReport& report) {
  const HostReport& host = report.host;
  std::vector<int> spare = host.siblings;
  spare.insert(spare.end(), host.slow.begin(), host.slow.end());
  std::sort(spare.begin(), spare.end());
  Json json = {{"cpu", host.cpu_name},
               {"allowed_cpus", host.allowed},
               {"spare_cpus", spare},
               {"cpu_speeds", Json::object()},
               {"cpu_quota", host.quota},
               {"isa", host.isa},
               {"isa_is_forced", host.isa_is_forced},
               {"isas", host.isas},
               {"available_bytes", host.available_bytes},
               {"huge_pages", host.huge_pages},
               {"nodes", Json::array()},
               {"workers", Json::array()}};
  for (const auto& [cpu, speed] : host.speeds) json["cpu_speeds"][absl::StrCat(cpu)] = speed;
  for (const NumaNode& node : host.nodes) json["nodes"].push_back({{"id", node.id}, {"cpus", node.cpus}});
  for (const Placement& placement : host.placements) json["workers"].push_back(PlacementJson(placement));
  if (report.ceilings.has_value()) {
    json["ceilings"] = {{"num_threads", report.ceilings->num_threads},
                        {"read_gbps", report.ceilings->read_gbps},
                        {"f32_gflops", report.ceilings->peaks.f32_gflops},
                        {"bf16_gflops", report.ceilings->peaks.bf16_gflops},
                        {"int8_gops", report.ceilings->peaks.int8_gops}};
  }
  if (report.model.has_value()) {
    const ModelReport& model = *report.model;
    json["model"] = {{"name", model.name},
                     {"stored_type", model.stored_type},
                     {"num_parameters", model.num_parameters},
                     {"stored_bytes", model.stored_bytes},
                     {"bf16_bytes", model.bf16_bytes},
                     {"kv_token_bytes", model.kv_token_bytes},
                     {"kv_reach", model.kv_reach},
                     {"num_experts", model.num_experts},
                     {"experts_per_token", model.experts_per_token},
                     {"active_parameters", model.active_parameters},
                     {"tokenizer_error", model.tokenizer_error},
                     {"as_stored", FitJson(FitAsStored(model, host.available_bytes))},
                     {"in_bf16", FitJson(FitInBf16(model, host.available_bytes))}};
    if (report.ceilings.has_value()) {
      const ModelSpeed speed = BestSpeed(model, *report.ceilings);
      json["model"]["at_best"] = {{"decode_tokens_per_s", speed.decode_bf16},
                                  {"decode_as_stored_tokens_per_s", speed.decode_stored},
                                  {"prompt_tokens_per_s", speed.prompt_bf16},
                                  {"prompt_as_stored_tokens_per_s", speed.prompt_stored}};
    }
  }
  // A model's name is part of a path, which may hold any bytes, and a terminal obeys some characters.
  return absl::StrCat(json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace), "\n");
}

}  // namespace somnus
