// The doctor's report on a host and on a model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "checkpoint/checkpoint.h"
#include "tools/doctor/report_text.h"
#include "tools/probe/machine_peak.h"
#include "tools/probe/machine_probe.h"
#include "tools/probe/probe_thread.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// As ReportHost does, of CPUs that are made up.
HostReport Place(int num_workers, const HostCpus& cpus, bool pins = true) {
  HostReport host;
  host.allowed = cpus.allowed;
  host.siblings = cpus.siblings;
  host.speeds = cpus.speeds;
  host.nodes = cpus.nodes;
  for (int i = 0; i < num_workers; ++i) {
    host.placements.push_back(
        ChoosePlacement({.ranks_on_host = num_workers, .index_on_host = i, .pins = pins}, cpus).value());
  }
  host.slow = SlowCpus(host);
  return host;
}

// Eight CPUs of four cores, for two workers, which a quota leaves without pins.
HostReport EightCpus() {
  HostReport host = Place(2, {{}, {0, 1, 2, 3, 4, 5, 6, 7}, 3, {4, 5, 6, 7}}, /*pins=*/false);
  host.cpu_name = "Some CPU";
  host.quota = 3.5;
  host.isa = "avx2";
  host.isas = {"portable", "avx2"};
  host.available_bytes = int64_t{6} << 30;
  host.huge_pages = "never";
  return host;
}

// Two nodes of four CPUs, of which neighbours share a core.
HostCpus TwoNodes() {
  return {{{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}}, {0, 1, 2, 3, 4, 5, 6, 7}, 8, {1, 3, 5, 7}};
}

// Eight cores of three speeds, of which the slowest adds too little to compute.
HostCpus CoresOfThreeSpeeds() {
  HostCpus cpus = {{}, {0, 1, 2, 3, 4, 5, 6, 7}, 8, {}};
  for (const int cpu : cpus.allowed) cpus.speeds[cpu] = cpu < 2 ? 1 : cpu < 7 ? 0.4 : 0.2;
  return cpus;
}

// The parts of ProbeThreads that a test compares.
std::vector<int> CpusOf(const std::vector<ProbeThread>& threads) {
  std::vector<int> cpus;
  for (const ProbeThread& thread : threads) cpus.push_back(thread.cpu);
  return cpus;
}

std::unique_ptr<Checkpoint> Open(const char* path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return std::move(checkpoint).value_or(nullptr);
}

TEST(Doctor, SaysWhatIsChosenAndWhy) {
  const std::string text = DoctorText({.host = EightCpus(), .ceilings = {}, .model = {}});
  EXPECT_TRUE(absl::StrContains(text, "Some CPU; may use 8 CPUs (0-7), computes on 4: 4-7 share a core"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "a quota pays for 3.50")) << text;
  EXPECT_TRUE(absl::StrContains(text, "avx2, the best; this CPU has portable, avx2")) << text;
  EXPECT_TRUE(absl::StrContains(text, "6.00 GiB available; huge pages are off")) << text;
  EXPECT_TRUE(absl::StrContains(text, "worker 1       1 thread, one node, one thread for each")) << text;
}

TEST(Doctor, SaysWhichSlowCoresCompute) {
  const DoctorReport report = {.host = Place(1, CoresOfThreeSpeeds()), .ceilings = {}, .model = {}};
  const std::string text = DoctorText(report);
  EXPECT_TRUE(absl::StrContains(text, "may use 8 CPUs (0-7), computes on 7: 7 are slow")) << text;
  EXPECT_TRUE(absl::StrContains(
      text,
      "7 threads, pinned, one node, one thread for each core: 2 of speed 1, 5 of 0.4 (+100%), none of "
      "0.2 (+5%, less than 25%)"))
      << text;
  const auto json = nlohmann::json::parse(DoctorJson(report));
  EXPECT_EQ(json["spare_cpus"], nlohmann::json({7}));
  EXPECT_EQ(json["cpu_speeds"]["7"], 0.2);
  EXPECT_EQ(json["workers"][0]["thread_speeds"][2], 0.4);
}

TEST(Doctor, SaysWhichNodeAWorkerHas) {
  const DoctorReport report = {.host = Place(2, TwoNodes()), .ceilings = {}, .model = {}};
  const std::string text = DoctorText(report);
  EXPECT_TRUE(absl::StrContains(text, "NUMA           node 0: CPUs 0-3; node 1: CPUs 4-7\n")) << text;
  EXPECT_TRUE(
      absl::StrContains(text, "worker 1       2 threads, pinned, node 1, CPUs 4-7, one thread for each"))
      << text;
  const std::string alone = DoctorText({.host = Place(1, TwoNodes()), .ceilings = {}, .model = {}});
  EXPECT_TRUE(absl::StrContains(alone, "4 threads, pinned, nodes 0-1, memory of each in turns")) << alone;
  const auto json = nlohmann::json::parse(DoctorJson(report));
  EXPECT_EQ(json["nodes"][1]["cpus"], nlohmann::json({4, 5, 6, 7}));
  EXPECT_EQ(json["workers"][1]["memory_nodes"], nlohmann::json({1}));
}

TEST(Doctor, TheSameIsJson) {
  const auto json = nlohmann::json::parse(DoctorJson({.host = EightCpus(), .ceilings = {}, .model = {}}));
  EXPECT_EQ(json["spare_cpus"], nlohmann::json({4, 5, 6, 7}));
  ASSERT_EQ(json["workers"].size(), 2);
  EXPECT_EQ(json["workers"][0]["num_threads"], 1);
  EXPECT_EQ(json["workers"][0]["cpus"], nlohmann::json({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(json.contains("model"));
}

TEST(Doctor, CountsWhatAStepReads) {
  const auto checkpoint = Open("tests/data/tiny/llama-rope3");
  ASSERT_NE(checkpoint, nullptr);
  const ModelReport model = ReportModel(*checkpoint);
  constexpr int64_t kEmbedding = 512 * 64, kLayer = 64 * (64 + 16 + 16 + 64) + 3 * 64 * 96, kNorms = 5 * 64;
  EXPECT_EQ(model.num_parameters, 2 * kEmbedding + 2 * kLayer + kNorms);
  EXPECT_EQ(model.step_bf16_bytes, 2 * (kEmbedding + 2 * kLayer + kNorms)) << "the head, not the embedding";
  EXPECT_EQ(model.prompt_token_flops, 2 * 2 * kLayer);
  EXPECT_EQ(model.step_flops, 2 * (kEmbedding + 2 * kLayer));
  EXPECT_EQ(model.kv_token_bytes, 2 * 2 * 16 * 2);
  EXPECT_FALSE(model.is_quantized);
}

TEST(Doctor, ATiedEmbeddingIsReadAsTheHead) {
  const auto checkpoint = Open("tests/data/tiny/qwen2");
  ASSERT_NE(checkpoint, nullptr);
  ASSERT_TRUE(checkpoint->config().tie_word_embeddings);
  const ModelReport model = ReportModel(*checkpoint);
  EXPECT_EQ(model.step_bf16_bytes, model.bf16_bytes);
  EXPECT_EQ(model.step_flops - model.prompt_token_flops,
            2 * checkpoint->config().vocab_size * checkpoint->config().hidden_size);
}

TEST(Doctor, ACheckpointOfFp8IsAByteForAWeight) {
  const auto checkpoint = Open("tests/data/packed/fp8-blocks");
  ASSERT_NE(checkpoint, nullptr);
  const ModelReport model = ReportModel(*checkpoint);
  EXPECT_TRUE(model.is_quantized);
  EXPECT_FALSE(model.multiplies_bytes) << "its products are of bfloat16";
  EXPECT_EQ(model.stored_type, "F8_E4M3");
  constexpr int64_t kMatrices = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96;
  constexpr int64_t kScales = 4 + 2 + 2 + 4 + 3 * 6;  // of four bytes each
  EXPECT_NEAR(model.step_bf16_bytes - model.step_stored_bytes, kMatrices, 2 * kScales);
}

// Tensors of all experts, and of all keys and values, whose parts are the model's tensors.
TEST(Doctor, AStoredTensorIsCountedOnce) {
  for (const std::string variant : {"gpt-oss", "mixtral-modules", "deepseek-v3"}) {
    const auto checkpoint = Open(("tests/data/variants/" + variant).c_str());
    ASSERT_NE(checkpoint, nullptr);
    const ModelReport model = ReportModel(*checkpoint);
    EXPECT_EQ(model.stored_bytes, 4 * model.num_parameters) << variant;
    EXPECT_EQ(model.step_stored_bytes, 2 * model.step_bf16_bytes) << variant;
  }
}

// Three of seven experts on two of three layers.
TEST(Doctor, AStepReadsTheExpertsOfOneToken) {
  const auto checkpoint = Open("tests/data/variants/qwen3-moe");
  ASSERT_NE(checkpoint, nullptr);
  const ModelReport model = ReportModel(*checkpoint);
  constexpr int64_t kExpert = 3 * 32 * 20, kEmbedding = 130 * 32;
  EXPECT_EQ(model.num_parameters - model.active_parameters, kEmbedding + 2 * 4 * kExpert);
  EXPECT_EQ(model.step_bf16_bytes, 2 * model.active_parameters);
  const std::string text = DoctorText({.host = EightCpus(), .ceilings = {}, .model = model});
  EXPECT_TRUE(absl::StrContains(text, "3 of 7 experts for each token: all are in memory")) << text;
}

// 0.1 GB as stored, 0.4 GB in bfloat16; 0.25 GFLOP for a token of a prompt, 0.4 for one of a step.
ModelReport SomeModel() {
  ModelReport model;
  model.is_quantized = model.multiplies_bytes = true;
  model.step_stored_bytes = 100'000'000;
  model.step_bf16_bytes = 400'000'000;
  model.prompt_token_flops = 250'000'000;
  model.step_flops = 400'000'000;
  return model;
}

TEST(Doctor, SpeedIsTheCeilingOverTheWork) {
  const HostCeilings ceilings = {
      .num_threads = 2, .read_gbps = 20, .peaks = {.f32_gflops = 1, .bf16_gflops = 500, .int8_gops = 1000}};
  ModelReport model = SomeModel();
  ModelSpeed speed = BestSpeed(model, ceilings);
  EXPECT_DOUBLE_EQ(speed.decode_stored, 200);
  EXPECT_DOUBLE_EQ(speed.decode_bf16, 50);
  EXPECT_DOUBLE_EQ(speed.prompt_stored, 4000);
  EXPECT_DOUBLE_EQ(speed.prompt_bf16, 2000);
  model.multiplies_bytes = false;
  speed = BestSpeed(model, ceilings);
  EXPECT_DOUBLE_EQ(speed.prompt_stored, 2000) << "of bfloat16, as those of fp8 weights";
}

TEST(Doctor, OneStreamIsBoundByArithmeticWhereThatTakesLonger) {
  const HostCeilings ceilings = {
      .num_threads = 2, .read_gbps = 20, .peaks = {.f32_gflops = 1, .bf16_gflops = 16, .int8_gops = 40}};
  const ModelSpeed speed = BestSpeed(SomeModel(), ceilings);
  EXPECT_DOUBLE_EQ(speed.decode_stored, 100) << "memory would allow 200";
  EXPECT_DOUBLE_EQ(speed.decode_bf16, 40) << "memory would allow 50";
}

TEST(Doctor, CeilingsAndSpeedsAreInBothReports) {
  const HostCeilings ceilings = {
      .num_threads = 2, .read_gbps = 20, .peaks = {.f32_gflops = 250, .bf16_gflops = 500, .int8_gops = 1000}};
  const DoctorReport report = {.host = EightCpus(), .ceilings = ceilings, .model = SomeModel()};
  const std::string text = DoctorText(report);
  EXPECT_TRUE(absl::StrContains(
      text, "2 threads: read 20.0 GB/s, f32 250 GFLOP/s, bf16 500 GFLOP/s, int8 1000 GOP/s"))
      << text;
  EXPECT_TRUE(
      absl::StrContains(text, "one stream 200 tokens/s, prompts 4000 tokens/s; with --dequantize one stream"))
      << text;
  const auto json = nlohmann::json::parse(DoctorJson(report));
  EXPECT_EQ(json["ceilings"]["int8_gops"], 1000);
  EXPECT_EQ(json["model"]["at_best"]["prompt_as_stored_tokens_per_s"], 4000);
}

// 1 GiB as stored, 4 GiB in bfloat16, and a MiB for each token of 6 GiB; of float32 two.
TEST(Doctor, SaysWhetherTheModelFits) {
  DoctorReport report = {.host = EightCpus(), .model = SomeModel()};
  ModelReport& model = *report.model;
  model.stored_type = "Q4_1";
  model.stored_bytes = int64_t{1} << 30;
  model.bf16_bytes = int64_t{4} << 30;
  model.kv_token_bytes = 1 << 20;
  const auto line = [&] {
    const std::string text = DoctorText(report);
    const size_t at = text.find("in memory      ");
    return at == std::string::npos ? text : text.substr(at + 15, text.find('\n', at) - at - 15);
  };
  EXPECT_EQ(
      line(),
      "fits, beside at most 5120 tokens of KV cache; with --dequantize fits, beside at most 2048 tokens of "
      "KV cache");
  report.host.available_bytes = int64_t{2} << 30;
  EXPECT_EQ(line(), "fits, beside at most 1024 tokens of KV cache; with --dequantize lacks 2.02 GiB");
  auto json = nlohmann::json::parse(DoctorJson(report))["model"];
  EXPECT_EQ(json["as_stored"],
            nlohmann::json({{"fits", true}, {"lacking_bytes", 0}, {"kv_cache_tokens", 1024}}));
  EXPECT_EQ(json["in_bf16"]["fits"], false);
  EXPECT_EQ(json["in_bf16"]["lacking_bytes"], (int64_t{2} << 30) + (16 << 20)) << "with a cache of 16 tokens";
  report.host.available_bytes = (int64_t{1} << 30) + (16 << 20) - 1;
  EXPECT_EQ(line(), "lacks 0.0 KiB; with --dequantize lacks 3.00 GiB");
  ++report.host.available_bytes;
  EXPECT_EQ(line(), "fits, beside at most 16 tokens of KV cache; with --dequantize lacks 3.00 GiB");
  model.is_quantized = false;
  model.stored_type = "F32";
  report.host.available_bytes = int64_t{2} << 30;
  EXPECT_EQ(line(), "fits, beside at most 512 tokens of KV cache");
}

TEST(Doctor, ANameThatIsNoTextIsReportedWithMarks) {
  DoctorReport report = {.host = EightCpus(), .model = SomeModel()};
  report.model->name = "a\xff.gguf";
  EXPECT_EQ(nlohmann::json::parse(DoctorJson(report))["model"]["name"], "a\uFFFD.gguf");
}

// A terminal obeys some characters beyond ASCII, and may have no UTF-8.
TEST(Doctor, JsonIsOfAsciiAlone) {
  DoctorReport report = {.host = EightCpus(), .model = SomeModel()};
  report.host.cpu_name = "Gr\u00fcn";
  report.model->name = "\u009b31m\u202e.gguf";
  const std::string json = DoctorJson(report);
  EXPECT_TRUE(std::all_of(json.begin(), json.end(), [](char c) {
    return c == '\n' || absl::ascii_isprint(c);
  })) << json;
  EXPECT_EQ(nlohmann::json::parse(json)["model"]["name"], report.model->name);
  EXPECT_EQ(nlohmann::json::parse(json)["cpu"], report.host.cpu_name);
}

TEST(Doctor, SaysWhyNoServerOfTheModelStarts) {
  const auto report = [](const char* path) {
    return DoctorReport{.host = EightCpus(), .model = ReportModel(**Checkpoint::Open(path))};
  };
  const DoctorReport without = report("tests/data/variants/granite"), with = report("tests/data/tiny/qwen3");
  EXPECT_THAT(DoctorText(without), HasSubstr("cannot serve   no tokenizer: none of tokenizer.json, "));
  EXPECT_THAT(without.model->tokenizer_error, HasSubstr("no tokenizer"));
  EXPECT_THAT(DoctorText(with), Not(HasSubstr("cannot serve")));
  for (const DoctorReport& either : {without, with}) {
    EXPECT_EQ(nlohmann::json::parse(DoctorJson(either))["model"]["tokenizer_error"],
              either.model->tokenizer_error);
  }
}

// The first CPUs of a host are two of one core where siblings are neighbours.
TEST(Doctor, MeasuresOneThreadOfEachCore) {
  const HostCpus cpus = {{}, {0, 1, 2, 3, 4, 5, 6, 7}, 8, {1, 3, 5, 7}};
  EXPECT_EQ(CpusOf(ProbeThreads(Place(1, cpus))), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(CpusOf(ProbeThreads(Place(2, cpus))), (std::vector<int>{0, 2, 4, 6})) << "of both workers";
  EXPECT_EQ(CpusOf(ProbeThreads(Place(3, cpus))), (std::vector<int>{0, 2, 4})) << "three divide four cores";
}

TEST(Doctor, MeasuresTheMemoryThatWorkersHave) {
  const std::vector<ProbeThread> own = ProbeThreads(Place(2, TwoNodes()));
  ASSERT_EQ(CpusOf(own), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(own[1].memory_nodes, std::vector<int>{0});
  EXPECT_EQ(own[2].memory_nodes, std::vector<int>{1});
  const std::vector<ProbeThread> in_turns = ProbeThreads(Place(1, TwoNodes()));
  ASSERT_EQ(CpusOf(in_turns), (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(in_turns[0].memory_nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(in_turns[3].memory_nodes, (std::vector<int>{0, 1}));
}

TEST(Doctor, MeasuresSlowCoresWithTheirShare) {
  const std::vector<ProbeThread> threads = ProbeThreads(Place(1, CoresOfThreeSpeeds()));
  ASSERT_EQ(CpusOf(threads), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(threads[1].speed, 1);
  EXPECT_EQ(threads[2].speed, 0.4);
}

TEST(Doctor, MeasuresThreadsWithoutPinsOnCoresOfTheirOwn) {
  EXPECT_EQ(CpusOf(ProbeThreads(EightCpus())), (std::vector<int>{0, 1}));
  const HostCpus two = {{}, {3, 4}, 2, {}};
  EXPECT_EQ(CpusOf(ProbeThreads(Place(3, two))), (std::vector<int>{3, 4})) << "a third one finds no CPU";
}

// Threads of unequal shares on one CPU, with memory of a node that the kernel refuses.
TEST(Doctor, MeasuresWhateverThreadsThereAre) {
  const int cpu = ReportHost(1).value().allowed.front();
  EXPECT_GT(ReadGbps({{cpu, 1, {1023}}, {cpu, 0.3, {}}, {cpu, 0.001, {}}}), 0);
  EXPECT_EQ(ReadGbps({}), 0);
}

TEST(Doctor, ReportsThisHost) {
  const absl::StatusOr<HostReport> host = ReportHost(2);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->placements.size(), 2);
  EXPECT_GT(host->available_bytes, 0);
  EXPECT_FALSE(host->allowed.empty());
  ASSERT_FALSE(host->isas.empty());
  if (!host->isa_is_forced) {
    EXPECT_EQ(host->isa, host->isas.back());
  }
  const HostCeilings ceilings = MeasureCeilings(*host);
  EXPECT_EQ(ceilings.num_threads, ProbeThreads(*host).size());
  EXPECT_GT(ceilings.read_gbps, 0);
  EXPECT_GT(ceilings.peaks.f32_gflops, 0);
}

// Each loop is executed, with the instructions that its set has.
TEST(Doctor, EveryInstructionSetOfThisCpuHasPeaks) {
  const absl::StatusOr<HostReport> host = ReportHost(1);
  ASSERT_TRUE(host.ok()) << host.status();
  for (const std::string& isa : host->isas) {
    const MachinePeaks peaks = MeasurePeaks(isa, ThreadsOnFirstCpus(1));
    EXPECT_GT(peaks.f32_gflops, 0) << isa;
    EXPECT_GT(peaks.bf16_gflops, 0) << isa;
    EXPECT_GT(peaks.int8_gops, 0) << isa;
  }
  const MachinePeaks none = MeasurePeaks("sse9", ThreadsOnFirstCpus(1));
  EXPECT_EQ(none.f32_gflops + none.bf16_gflops + none.int8_gops, 0);
}

TEST(Doctor, AnInstructionSetThatIsNoneIsAnError) {
  const char* const before = getenv("SOMNUS_CPU_ISA");
  const std::string old = before == nullptr ? "" : before;
  setenv("SOMNUS_CPU_ISA", "sse9", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ReportHost(1).status()));
  before == nullptr ? unsetenv("SOMNUS_CPU_ISA") : setenv("SOMNUS_CPU_ISA", old.c_str(), 1);
}

}  // namespace
}  // namespace somnus
