// A dataset of token ids becomes exactly the requests that stand in it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/bench/serving/options.h"
#include "tools/bench/serving/workload.h"

namespace somnus::bench {
namespace {

using nlohmann::json;

std::string DatasetFile(const std::string& text) {
  static int count = 0;
  const std::string path = absl::StrCat(testing::TempDir(), "/dataset", ++count, ".jsonl");
  std::ofstream(path) << text;
  return path;
}

// Needs no server: the model's name is given, and a dataset's prompts are sent as they are.
BenchOptions Options(const std::string& dataset, int32_t num_requests, bool in_order) {
  BenchOptions options;
  options.model = "bench";
  options.dataset = dataset;
  options.num_requests = num_requests;
  options.in_order = in_order;
  return options;
}

constexpr char kThree[] =
    "{\"prompt_token_ids\": [3, 1, 4], \"output_len\": 7}\n"
    "{\"prompt_token_ids\": [1], \"output_len\": 2}\n"
    "{\"prompt_token_ids\": [5, 9, 2, 6], \"output_len\": 5}\n";

TEST(ServingWorkload, InOrderIsTheFileLineByLine) {
  BenchOptions options = Options(DatasetFile(kThree), 3, true);
  const auto workload = Workload::Create(&options);
  ASSERT_TRUE(workload.ok()) << workload.status();
  const auto requests = workload->Make(3, /*stream=*/2);
  ASSERT_TRUE(requests.ok()) << requests.status();
  const std::vector<std::vector<int>> prompts = {{3, 1, 4}, {1}, {5, 9, 2, 6}};
  const std::vector<int> lengths = {7, 2, 5};
  for (int i = 0; i < 3; ++i) {
    const json body = json::parse((*requests)[i].body);
    EXPECT_EQ(body["prompt"], json(prompts[i]));
    EXPECT_EQ(body["max_tokens"], lengths[i]);
  }
}

TEST(ServingWorkload, DrawsFromTheFileOtherwise) {
  BenchOptions options = Options(DatasetFile(kThree), 50, false);
  const auto workload = Workload::Create(&options);
  ASSERT_TRUE(workload.ok()) << workload.status();
  const auto requests = workload->Make(50, /*stream=*/2);
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (const BenchRequest& request : *requests) {
    const json body = json::parse(request.body);
    EXPECT_EQ(body["max_tokens"], body["prompt"].size() == 3 ? 7 : body["prompt"].size() == 1 ? 2 : 5);
  }
}

TEST(ServingWorkload, RefusesAFileThatIsTooShortOrHoldsNoPrompts) {
  BenchOptions four = Options(DatasetFile(kThree), 4, true);
  EXPECT_EQ(Workload::Create(&four).status().code(), absl::StatusCode::kInvalidArgument);
  BenchOptions none =
      Options(DatasetFile("{\"prompt_token_ids\": [\"a\"], \"output_len\": 1}\n[]\nx\n"), 1, false);
  EXPECT_EQ(Workload::Create(&none).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ServingWorkload, InOrderNeedsADatasetAndNoWarmup) {
  EXPECT_FALSE(ParseOptions({"--in-order"}).ok());
  EXPECT_FALSE(ParseOptions({"--in-order", "--dataset", "x", "--warmup", "2"}).ok());
  const auto options = ParseOptions({"--in-order", "--dataset", "x"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->in_order);
}

TEST(ServingOptions, TheServersAddress) {
  const auto parsed = [](const std::string& url) {
    const auto options = ParseOptions({"--base-url", url});
    return options.ok() ? absl::StrCat(options->host, " ", options->port, options->base_path,
                                       options->tls ? " over TLS" : "")
                        : "refused";
  };
  EXPECT_EQ(parsed("http://127.0.0.1:81"), "127.0.0.1 81");
  EXPECT_EQ(parsed("http://example.com"), "example.com 80");
  EXPECT_EQ(parsed("http://example.com:8000/v1/"), "example.com 8000");
  EXPECT_EQ(parsed("http://[::1]:8000/prefix/v1"), "::1 8000/prefix");
  EXPECT_EQ(parsed("http://[::1]"), "::1 80");
  EXPECT_EQ(parsed("https://example.com"), "example.com 443 over TLS");
  EXPECT_EQ(parsed("https://example.com:8443/v1"), "example.com 8443 over TLS");
  for (const char* bad : {"example.com", "ftp://example.com", "https://", "http://", "http://:80",
                          "http://host:", "http://host:0", "http://host:65536", "http://host:x"})
    EXPECT_EQ(parsed(bad), "refused") << bad;
}

}  // namespace
}  // namespace somnus::bench
