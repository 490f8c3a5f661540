#include "coordinator/flags/engine_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace somnus {
namespace {

using Json = nlohmann::json;

TEST(EngineConfigTest, HasTheSettingsOfFlagsAndModel) {
  Flags flags;
  flags.model = "/models/small";
  flags.world_size = 2;
  flags.data_parallel_size = 3;
  flags.engine.scheduler.max_num_seqs = 7;
  flags.device = v1::DEVICE_TYPE_CPU;
  const Json config = Json::parse(EngineConfigJson(
      flags,
      {.served_model_name = "s", .dtype = v1::DTYPE_FLOAT16, .max_model_len = 4096, .num_blocks = 99}));
  EXPECT_EQ(config["model_config"]["model"], "/models/small");
  EXPECT_EQ(config["model_config"]["served_model_name"], "s");
  EXPECT_EQ(config["model_config"]["dtype"], "float16");
  EXPECT_EQ(config["model_config"]["max_model_len"], 4096) << "which no flag has given";
  EXPECT_EQ(config["cache_config"]["cache_dtype"], "float16") << "the model's";
  EXPECT_EQ(config["cache_config"]["num_blocks"], 99);
  EXPECT_EQ(config["parallel_config"]["tensor_parallel_size"], 2);
  EXPECT_EQ(config["parallel_config"]["data_parallel_size"], 3);
  EXPECT_EQ(config["scheduler_config"]["max_num_seqs"], 7);
  EXPECT_EQ(config["device_config"]["device"], "cpu");
  EXPECT_EQ(config["load_config"]["load_format"], "auto");
  for (const Json& part : config) EXPECT_TRUE(part.is_object()) << part;
}

TEST(EngineConfigTest, SaysWhereDraftsComeFrom) {
  Flags flags;
  flags.engine.scheduler.speculation.num_speculative_tokens = 4;
  const auto speculation = [&flags] {
    return Json::parse(EngineConfigJson(flags, {}))["speculative_config"];
  };
  EXPECT_EQ(speculation(), Json({{"method", "ngram"},
                                 {"num_speculative_tokens", 4},
                                 {"prompt_lookup_min", 2},
                                 {"prompt_lookup_max", 5}}));
  flags.speculative = "draft";
  flags.draft_model = "/models/smaller";
  EXPECT_EQ(speculation(),
            Json({{"method", "draft"}, {"num_speculative_tokens", 4}, {"model", "/models/smaller"}}));
}

TEST(EngineConfigTest, HasNoSecretsAndNoBrokenText) {
  Flags flags;
  flags.model = "/models/\xff";
  flags.api_keys = flags.admin_api_keys = ApiKeys("secret");
  const std::string text = EngineConfigJson(flags, {});
  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  EXPECT_TRUE(Json::accept(text)) << text;
}

}  // namespace
}  // namespace somnus
