// Parts of the gateways' service without a channel: the archive of tokenizer files, the rate, the loads.

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "coordinator/grpc/gateway/load_report.h"
#include "coordinator/grpc/gateway/tokenizer_archive.h"
#include "tests/fakes/temp_dir.h"

namespace somnus::gateway {
namespace {

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(TokenizerArchiveTest, ChunksAreBoundedAndTheLastHasTheHash) {
  const TempDir dir;
  WriteFile(dir.path() + "/tokenizer.json", std::string(3 << 20, 't'));
  WriteFile(dir.path() + "/tokenizer_config.json", "{}");
  WriteFile(dir.path() + "/model.safetensors", "weights");
  std::vector<common::GetTokenizerChunk> chunks;
  ASSERT_TRUE(WriteTokenizer(dir.path(), "", [&](const common::GetTokenizerChunk& chunk) {
                chunks.push_back(chunk);
                return true;
              }).ok());
  ASSERT_GE(chunks.size(), 4u);
  std::string archive;
  for (const common::GetTokenizerChunk& chunk : chunks) {
    EXPECT_LE(chunk.data().size(), size_t{1} << 20);
    EXPECT_EQ(chunk.sha256().empty(), &chunk != &chunks.back());
    archive += chunk.data();
  }
  EXPECT_EQ(chunks.back().sha256().size(), 64u);
  EXPECT_EQ(archive.substr(0, 4), std::string("PK\x03\x04"));
  EXPECT_NE(archive.find("tokenizer_config.json"), std::string::npos);
  EXPECT_EQ(archive.find("weights"), std::string::npos);
}

TEST(TokenizerArchiveTest, NoTokenizerAndNoReader) {
  const TempDir dir;
  const auto take = [](const common::GetTokenizerChunk&) { return true; };
  EXPECT_TRUE(absl::IsNotFound(WriteTokenizer(dir.path(), "", take)));
  WriteFile(dir.path() + "/config.json", "{}");
  EXPECT_TRUE(absl::IsNotFound(WriteTokenizer(dir.path(), "", take)));
  WriteFile(dir.path() + "/tokenizer.json", "{}");
  EXPECT_TRUE(WriteTokenizer(dir.path(), "", take).ok());
  EXPECT_TRUE(absl::IsCancelled(
      WriteTokenizer(dir.path(), "", [](const common::GetTokenizerChunk&) { return false; })));
}

TEST(TokenizerArchiveTest, AChatTemplateTakesThePlaceOfTheFiles) {
  const TempDir dir;
  WriteFile(dir.path() + "/tokenizer.json", "{}");
  WriteFile(dir.path() + "/chat_template.jinja", "the file's own");
  WriteFile(dir.path() + "/chat_template.json", "the other file's own");
  const auto archive = [&](const std::string& chat_template) {
    std::string bytes;
    EXPECT_TRUE(WriteTokenizer(dir.path(), chat_template, [&](const common::GetTokenizerChunk& chunk) {
                  bytes += chunk.data();
                  return true;
                }).ok());
    return bytes;
  };
  EXPECT_NE(archive("").find("the file's own"), std::string::npos);
  EXPECT_NE(archive("").find("chat_template.json"), std::string::npos);
  const std::string replaced = archive("{{ messages }}");
  EXPECT_NE(replaced.find("{{ messages }}"), std::string::npos);
  EXPECT_NE(replaced.find("chat_template.jinja"), std::string::npos);
  EXPECT_EQ(replaced.find("file's own"), std::string::npos);
  EXPECT_EQ(replaced.find("chat_template.json"), std::string::npos);
}

TEST(RateMeterTest, TheRateIsOfTheTimeBetweenLooks) {
  RateMeter meter;
  EXPECT_EQ(meter.Look(100, absl::Seconds(50)), 0);
  EXPECT_EQ(meter.Look(140, absl::Seconds(50.5)), 0) << "too early for a rate";
  EXPECT_EQ(meter.Look(160, absl::Seconds(52)), 30);
  EXPECT_EQ(meter.Look(900, absl::Seconds(52.5)), 30) << "a look that is too early changes nothing";
  EXPECT_EQ(meter.Look(160, absl::Seconds(54)), 0);
}

TEST(LoadReportTest, BothMessagesTellTheSame) {
  EngineStats stats;
  stats.num_running = 3;
  stats.num_waiting = 2;
  stats.total_blocks = 50;
  stats.used_blocks = 20;
  stats.block_size = 16;
  stats.waiting_tokens = 77;
  stats.prefix_cache_queries = 100;
  stats.prefix_cache_hits = 25;
  wire::SchedulerLoad asked;
  FillLoad(stats, 6, 12.5, &asked);
  EXPECT_EQ(asked.num_total_reqs(), 5);
  EXPECT_EQ(asked.num_used_tokens(), 320);
  EXPECT_EQ(asked.max_total_num_tokens(), 800);
  EXPECT_EQ(asked.token_usage(), 0.4);
  EXPECT_EQ(asked.gen_throughput(), 12.5);
  EXPECT_EQ(asked.cache_hit_rate(), 0.25);
  EXPECT_EQ(asked.utilization(), 0.5);
  EXPECT_EQ(asked.num_waiting_uncached_tokens(), 77);
  common::EngineLoad sent;
  FillLoad(stats, 6, 12.5, &sent);
  EXPECT_EQ(sent.running_requests(), 3u);
  EXPECT_EQ(sent.waiting_requests(), 2u);
  EXPECT_EQ(sent.waiting_uncached_tokens(), 77u);
  EXPECT_EQ(sent.token_usage(), 0.4);
  EXPECT_EQ(sent.max_running_requests(), 6u);
  EXPECT_EQ(sent.num_used_tokens(), 320);
}

}  // namespace
}  // namespace somnus::gateway
