#include "tools/simulator/serving_load.h"

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

namespace somnus {
namespace {

std::vector<LoadRequest> All(RequestSource* source) {
  std::vector<LoadRequest> requests;
  for (auto request = source->Next(); request.has_value(); request = source->Next())
    requests.push_back(*request);
  return requests;
}

struct Means {
  double input = 0, output = 0, interval = 0;
};

Means MeansOf(const DrawnLoadOptions& options) {
  const std::vector<LoadRequest> requests = All(DrawLoad(options).get());
  Means means;
  const auto count = static_cast<double>(requests.size());
  for (const LoadRequest& request : requests) {
    means.input += request.input / count;
    means.output += request.output / count;
  }
  means.interval = requests.back().arrival_s / count;
  return means;
}

TEST(ServingLoadTest, LengthsHaveThePapersMeans) {
  DrawnLoadOptions options{.rate = 4, .requests = 200000};
  const Means sharegpt = MeansOf(options);
  EXPECT_NEAR(sharegpt.input, 161.31, 3);
  EXPECT_NEAR(sharegpt.output, 337.99, 7);  // pairs beyond the model's length are drawn again
  EXPECT_NEAR(sharegpt.interval, 0.25, 0.003);
  options.trace = LoadTrace::kAlpaca;
  const Means alpaca = MeansOf(options);
  EXPECT_NEAR(alpaca.input, 19.31, 0.3);
  EXPECT_NEAR(alpaca.output, 58.45, 0.6);
}

TEST(ServingLoadTest, RequestsFitIntoTheModelAndArriveInOrder) {
  DrawnLoadOptions options{.requests = 20000};
  double last = 0;
  int64_t id = 0;
  for (const LoadRequest& request : All(DrawLoad(options).get())) {
    EXPECT_EQ(request.id, id++);
    EXPECT_GE(request.input, 1);
    EXPECT_GE(request.output, 1);
    EXPECT_LE(request.input + request.output, 2048);
    EXPECT_GE(request.arrival_s, last);
    last = request.arrival_s;
  }
  EXPECT_EQ(id, 20000);
}

TEST(ServingLoadTest, TheSeedDecides) {
  DrawnLoadOptions options{.requests = 100};
  const std::vector<LoadRequest> first = All(DrawLoad(options).get()), again = All(DrawLoad(options).get());
  options.seed = 2;
  const std::vector<LoadRequest> other = All(DrawLoad(options).get());
  bool differs = false;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].arrival_s, again[i].arrival_s);
    EXPECT_EQ(first[i].input, again[i].input);
    EXPECT_EQ(first[i].output, again[i].output);
    differs = differs || first[i].input != other[i].input;
  }
  EXPECT_TRUE(differs);
}

TEST(ServingLoadTest, APrefixComesOnTopOfTheInput) {
  DrawnLoadOptions options{.requests = 1000, .prefix_groups = 3, .prefix = 512};
  std::vector<int> groups(3, 0);
  for (const LoadRequest& request : All(DrawLoad(options).get())) {
    EXPECT_EQ(request.prefix, 512);
    EXPECT_GT(request.input, 512);
    ++groups.at(request.prefix_group);
  }
  for (const int count : groups) EXPECT_GT(count, 250);
}

TEST(ServingLoadTest, AFileIsReadLineByLine) {
  const std::string path = testing::TempDir() + "/load.jsonl";
  std::ofstream(path)
      << "{\"arrival\": 0.5, \"input\": 10, \"output\": 3}\n\n"
      << "{\"arrival\": 2, \"input\": 40, \"output\": 1, \"prefix_group\": 7, \"prefix\": 32}\n";
  const auto load = LoadFile::Open(path);
  ASSERT_TRUE(load.ok()) << load.status();
  const std::vector<LoadRequest> requests = All(load->get());
  ASSERT_TRUE((*load)->status().ok()) << (*load)->status();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].arrival_s, 0.5);
  EXPECT_EQ(requests[0].prefix_group, -1);
  EXPECT_EQ(requests[1].id, 1);
  EXPECT_EQ(requests[1].prefix_group, 7);
  EXPECT_EQ(requests[1].prefix, 32);
}

TEST(ServingLoadTest, AWrongLineIsNamed) {
  const std::string path = testing::TempDir() + "/wrong.jsonl";
  for (const char* line : {"{\"arrival\": 0.1, \"input\": 10, \"output\": 3}",
                           "{\"arrival\": 2, \"input\": 0, \"output\": 3}", "{\"arrival\": 2, \"output\": 3}",
                           "[]", "no", "{\"arrival\": 2, \"input\": 1, \"output\": 1, \"prefix\": 2}"}) {
    std::ofstream(path) << "{\"arrival\": 1, \"input\": 10, \"output\": 3}\n" << line << "\n";
    const auto load = LoadFile::Open(path);
    ASSERT_TRUE(load.ok());
    EXPECT_EQ(All(load->get()).size(), 1u);
    EXPECT_EQ((*load)->status().message(), path + ":2: is no request of a load") << line;
  }
  EXPECT_FALSE(LoadFile::Open(path + ".none").ok());
}

}  // namespace
}  // namespace somnus
