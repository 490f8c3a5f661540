// --config: models from a file, and flags that are theirs alone.

#include "coordinator/flags/serve_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

class ServeConfigTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }
  absl::StatusOr<Flags> Parse(std::vector<std::string> args = {}) const {
    args.push_back("--config=" + path_);
    return ParseFlags(args);
  }

  const std::string path_ = testing::TempDir() + "/models.textproto";
};

TEST_F(ServeConfigTest, EachModelHasItsOwnFlags) {
  Write(R"(
    device_memory_budget: "3GiB"
    host_memory_budget: "1GiB"
    residency_policy: "slo"
    flags: "--port=9000"
    flags: "--no-async-scheduling"
    flags: "--idle-sleep-s=60"
    models { name: "a" path: "x/y=z" workers: "local:2" dtype: "float32" max_model_len: 512 pinned: true }
    models {
      name: "b" path: "y" priority: -3 ttft_target: "2s" tpot_target: "50ms" kv_cache_memory_bytes: "1MiB"
      dequantize: false quantization: "int8" max_num_seqs: 7 flags: "--block_size=32" flags: "--async-scheduling"
      flags: "--idle-sleep-s=5" flags: "--idle-sleep-level=2"
    }
  )");
  const absl::StatusOr<Flags> flags = Parse();
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->device_memory_budget, int64_t{3} << 30);
  EXPECT_EQ(flags->host_memory_budget, int64_t{1} << 30);
  EXPECT_EQ(flags->devices.residency.policy, ResidencyPolicy::kSlo);
  EXPECT_EQ(flags->port, 9000);
  EXPECT_EQ(flags->pinned_models, std::set<std::string>{"a"});
  EXPECT_EQ(flags->model_priorities.at("b"), -3);
  EXPECT_EQ(TargetOf(flags->model_ttft_targets, "b"), absl::Seconds(2));
  EXPECT_EQ(TargetOf(flags->model_tpot_targets, "b"), absl::Milliseconds(50));
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0].served_model_name, "a");
  EXPECT_EQ(each[0].model, "x/y=z");
  EXPECT_EQ(each[0].world_size, 2);
  EXPECT_EQ(each[0].dtype, v1::DTYPE_FLOAT32);
  EXPECT_EQ(each[0].max_model_len, 512);
  EXPECT_FALSE(each[0].engine.async_scheduling);
  EXPECT_EQ(each[0].auto_sleep.idle_sleep, absl::Seconds(60));
  EXPECT_EQ(each[1].served_model_name, "b");
  EXPECT_EQ(each[1].world_size, 1);
  EXPECT_EQ(each[1].dtype, v1::DTYPE_UNSPECIFIED) << "that is of the other one";
  EXPECT_EQ(each[1].kv_cache_memory_bytes, 1 << 20);
  EXPECT_EQ(each[0].dequantize, std::nullopt);
  EXPECT_EQ(each[1].dequantize, false);
  EXPECT_EQ(each[1].quantization, Quantization::kInt8);
  EXPECT_EQ(each[0].quantization, Quantization::kNone);
  EXPECT_EQ(each[1].engine.scheduler.max_num_seqs, 7);
  EXPECT_EQ(each[1].engine.scheduler.blocks.block_size, 32);
  EXPECT_EQ(each[1].auto_sleep.idle_sleep, absl::Seconds(5));
  EXPECT_EQ(each[1].auto_sleep.idle_level, 2);
  EXPECT_TRUE(each[1].engine.async_scheduling) << "a model's word goes before that for all";
}

TEST_F(ServeConfigTest, TheCommandLineIsBetweenAllModelsAndOne) {
  Write(R"(
    device_memory_budget: "3GiB"
    flags: "--dtype=float16"
    flags: "--port=9000"
    models { name: "a" path: "x" dtype: "float32" pinned: false priority: 5 }
    models { name: "b" path: "y" }
  )");
  const absl::StatusOr<Flags> flags =
      Parse({"first", "--model=c=z", "--dtype=bfloat16", "--device-memory-budget=4GiB", "--pin-model=a",
             "--model-priority=a=1", "--model-priority=b=1"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->device_memory_budget, int64_t{4} << 30);
  EXPECT_EQ(flags->port, 9000);
  EXPECT_TRUE(flags->pinned_models.empty());
  EXPECT_EQ(flags->model_priorities.at("a"), 5);
  EXPECT_EQ(flags->model_priorities.at("b"), 1);
  std::vector<std::pair<std::string, v1::DType>> models;
  for (const Flags& model : OfEachModel(*flags)) models.emplace_back(model.model, model.dtype);
  EXPECT_EQ(models, (std::vector<std::pair<std::string, v1::DType>>{{"first", v1::DTYPE_BFLOAT16},
                                                                    {"x", v1::DTYPE_FLOAT32},
                                                                    {"y", v1::DTYPE_BFLOAT16},
                                                                    {"z", v1::DTYPE_BFLOAT16}}));
}

TEST_F(ServeConfigTest, OneModel) {
  Write("models { name: 'a' path: 'x' max_num_seqs: 3 }");
  const absl::StatusOr<Flags> flags = Parse();
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_TRUE(flags->models.empty());
  EXPECT_EQ(flags->model, "x");
  EXPECT_EQ(flags->served_model_name, "a");
  EXPECT_EQ(flags->engine.scheduler.max_num_seqs, 3);
}

TEST_F(ServeConfigTest, EachModelMayHaveSeveralNames) {
  const std::string first =
      "models { name: 'a' path: 'x' served_model_name: 'b' served_model_name: 'org/c' }\n";
  Write(first);
  absl::StatusOr<Flags> flags = Parse();
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->served_model_name, "a");
  EXPECT_EQ(flags->model_aliases, (std::vector<std::string>{"b", "org/c"})) << "of one model";
  flags = Parse({"--served-model-name", "z"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->served_model_name, "z") << "of the command line";
  EXPECT_EQ(flags->model_aliases, (std::vector<std::string>{"a", "b", "org/c"}));
  Write(first + "models { name: 'd' path: 'y' served_model_name: 'e' }");
  flags = Parse({"first", "--served-model-name", "f", "g"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  std::vector<std::vector<std::string>> names;
  for (const Flags& model : OfEachModel(*flags)) {
    names.push_back({model.served_model_name});
    names.back().insert(names.back().end(), model.model_aliases.begin(), model.model_aliases.end());
  }
  EXPECT_EQ(names, (std::vector<std::vector<std::string>>{{"f", "g"}, {"a", "b", "org/c"}, {"d", "e"}}));
  Write(first + "models { name: 'd' path: 'y' served_model_name: 'a' }");
  EXPECT_EQ(Parse().status().message(), "--model: two models are named a");
}

TEST_F(ServeConfigTest, OneModelMayHaveRemoteWorkers) {
  Write("models { name: 'a' path: 'x' workers: 'auto' }");
  const absl::StatusOr<Flags> flags = ParseFlags(
      {"--config=" + path_}, {{"SOMNUS_WORLD_SIZE", "2"}, {"SOMNUS_COORDINATOR", "10.0.0.2:29400"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->local_workers);
  EXPECT_EQ(flags->world_size, 2);
}

TEST_F(ServeConfigTest, MistakesAreNamedWithTheirLines) {
  const std::string two = "models { name: 'a' path: 'x' }\nmodels { name: 'b' path: 'y' }\n";
  const std::pair<std::string, const char*> cases[] = {
      {"models {\n name: 'a'\n nmae: 'b' }", ": line 3: Message type \"somnus.v1.ServeConfig.Model\" has no"},
      {"models { name: 'a' }\n}", ": line 2: "},
      {"models { name: 'a'\n name: 'b' }",
       ": line 2: Non-repeated field \"name\" is specified multiple times"},
      {"models { max_model_len: 'x' }", ": line 1: Expected integer"},
      {two + "models { name: 'c'\n path: 'z'\n dtype: 'int4' }", ":5: dtype: 'int4' is not one of auto, "},
      {two + "models { path: 'z' }", ":3: name: a model needs one"},
      {two + "models { name: 'c' }", ":3: path: a model needs one"},
      {two + "models { name: 'c/d' path: 'z' }", ":3: name: 'c/d' has a '=' or a '/'"},
      {two + "models {\n name: 'a' path: 'z' }", ":4: name: two models are named a"},
      {two + "models { name: 'c' path: 'z'\n max_num_seqs: 0 }", ":4: max_num_seqs: '0' is not a whole "},
      {two + "models { name: 'c' path: 'z'\n kv_cache_memory_bytes: '' }",
       ":4: kv_cache_memory_bytes: '' is"},
      {two + "models { name: 'c' path: 'z'\n ttft_target: 'soon' }", ":4: ttft_target: 'c=soon' is not "},
      {two + "models { name: 'c' path: 'z' flags: '--dtype=float16'\n flags: '--dtype=float32' }",
       ":4: flags: --dtype: 'float32' is the second value"},
      {two + "models { name: 'c' path: 'z' dtype: 'float16'\n flags: '--dtype=float32' }",
       "is the second value"},
      {two + "models { name: 'c' path: 'z' flags: '--prot=9' }",
       ":3: flags: unknown flag --prot: did you mean --port?"},
      {two + "models { name: 'c' path: 'z' flags: '--port=9' }",
       ":3: flags: --port: '9' is about all models: say it outside of `models`"},
      {two + "models { name: 'c' path: 'z' flags: '--config=f' }", ":3: flags: --config: 'f' is about all"},
      {two + "models { name: 'c' path: 'z' flags: '--run-dir=/r' }",
       ":3: flags: --run-dir: '/r' is about all"},
      {two + "models { name: 'c' path: 'z' flags: '--model=m' }",
       ":3: flags: --model: 'm' is a field of the"},
      {two + "models { name: 'c' path: 'z' flags: 'm' }", ":3: flags: 'm' is not --NAME=VALUE"},
      {two + "models { name: 'c' path: 'z' flags: '--help' }", ":3: flags: '--help' is not --NAME=VALUE"},
      {two + "flags: '--dtype'", ":3: flags: --dtype: has no value"},
      {two + "flags: '--config=f'", ":3: flags: --config: 'f' is not for the file itself"},
      {two + "flags: '--pin-model=a'", ":3: flags: --pin-model: 'a' is about one model: say it in `models`"},
      {two + "device_memory_budget: 'lots'", ":3: device_memory_budget: 'lots' is not "},
      {two + "models { name: 'c'\n path: 'z' workers: 'remote:1' }", ":3: --workers: several models need"},
      {two + "models { name: 'c' path: 'z' workers: 'auto' }", ":3: --workers: several models need workers"},
      {two + "models { name: 'c' path: 'z'\n served_model_name: 'd' served_model_name: 'd' }",
       ":4: served_model_name: the model is named d already"},
      {two + "models { name: 'c' path: 'z' served_model_name: '' }", ":3: served_model_name: is empty"},
      {two + "models { name: 'c' path: 'z' flags: '--served-model-name=d' }",
       ":3: flags: --served-model-name: 'd' is a field of the model"},
      {two + "models { name: 'c' path: 'z' max_num_seqs: 600 }", ":3: --max-num-batched-tokens: 512 is less"},
  };
  for (const auto& [text, expected] : cases) {
    Write(text);
    const absl::Status status = Parse().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << expected;
    EXPECT_EQ(status.message().substr(0, 10 + path_.size()), "--config: " + path_) << status;
    EXPECT_NE(status.message().find(expected), absl::string_view::npos) << status << "\nnot: " << expected;
  }
}

TEST_F(ServeConfigTest, FilesThatCannotBeRead) {
  const auto message = [](const std::string& path) {
    return std::string(ParseFlags({"--config=" + path}).status().message());
  };
  EXPECT_EQ(message("/nowhere/models"), "--config: there is no /nowhere/models");
  EXPECT_EQ(message("/"), "--config: /: it cannot be read: Is a directory");
  EXPECT_EQ(message("/dev/zero"), "--config: /dev/zero: it has more than 1048576 bytes");
  Write("");
  EXPECT_EQ(Parse().status().message(), "--model: no model was given; see --help");
}

TEST_F(ServeConfigTest, TheExampleIsRight) {
  const absl::StatusOr<Flags> flags = ParseFlags({"--config=docs/models.textproto"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 3u);
  EXPECT_EQ(each[0].max_model_len, 4096);
  EXPECT_EQ(each[1].max_model_len, 8192);
  EXPECT_EQ(each[1].dequantize, true);
  EXPECT_EQ(each[2].world_size, 2);
  EXPECT_FALSE(each[2].engine.scheduler.blocks.enable_prefix_caching);
}

TEST_F(ServeConfigTest, APathMayBeginAtHome) {
  Write(R"(models { name: "a" path: "~/x.gguf" } models { name: "b" path: "y/~/z" })");
  const absl::StatusOr<Flags> flags = Parse();
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  const char* home = getenv("HOME");
  EXPECT_EQ(each[0].model, home == nullptr ? "~/x.gguf" : std::string(home) + "/x.gguf");
  EXPECT_EQ(each[1].model, "y/~/z");
}

}  // namespace
}  // namespace somnus
