#include "tests/simulation/clients.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

constexpr int kPrefixTokens = 12;
constexpr int kMaxOwnTokens = 16;
constexpr int kMaxOutputs = 20;

}  // namespace

std::vector<int32_t> SharedPrefix(int64_t number) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kPrefixTokens; ++i) tokens.push_back(static_cast<int32_t>(number * 100 + i));
  return tokens;
}

Client::Client(Site* site, int number, int model)
    : site_(*site), model_(model), id_(absl::StrCat("request-", number)) {
  Random& random = site_.world.random();
  if (const int64_t prefix = random.Between(0, kNumSharedPrefixes); prefix > 0)
    prompt_ = SharedPrefix(prefix);
  for (int64_t i = random.Between(1, kMaxOwnTokens); i > 0; --i)
    prompt_.push_back(static_cast<int32_t>(random.Between(0, site_.model.vocab_size - 1)));
  max_tokens_ = static_cast<int32_t>(random.Between(1, kMaxOutputs));
  tokens_ = prompt_;
}

void Client::Begin() {
  tokens_ = prompt_;
  num_tokens_ = 0;
  thread_ = 0;
  num_moves_ = 0;
}

EngineRequest Client::MakeRequest() {
  EngineRequest request{.id = id_, .prompt = prompt_};
  request.sampling = std::make_shared<const SamplingParams>(SamplingParams{.temperature = 0});
  request.max_tokens = max_tokens_;
  request.priority = static_cast<int32_t>(site_.world.random().Between(0, 2));
  return request;
}

void Client::OnOutput(RequestOutput output) {
  if (ended_) return site_.world.Violate(absl::StrCat(id_, " gets an output after its end"));
  if (!output.token_ids.empty()) NoteThread();
  for (const int32_t token : output.token_ids) CheckToken(token, output.weights_version);
  if (output.finish_reason != FinishReason::kNone) CheckEnd(output);
}

void Client::NoteThread() {
  const uint64_t thread = site_.world.current_thread();
  if (thread_ != 0 && thread != thread_) ++num_moves_;
  thread_ = thread;
}

void Client::CheckToken(int32_t token, int64_t weights_version) {
  const WeightsByVersion& versions = site_.weights.at(model_);
  const auto weights = versions.find(weights_version);
  if (weights == versions.end())
    return site_.world.Violate(
        absl::StrCat(id_, " gets a token of version ", weights_version, " of the weights"));
  const int32_t expected = FakeWorker::ReferenceTokens(tokens_, 1, site_.model.vocab_size,
                                                       static_cast<uint64_t>(weights->second))[0];
  if (token != expected || num_tokens_ == max_tokens_) {
    return site_.world.Violate(absl::StrCat(id_, ": token ", num_tokens_, " is ", token, ", not ", expected,
                                            " of version ", weights_version));
  }
  ++num_tokens_;
  tokens_.push_back(token);
}

void Client::CheckEnd(const RequestOutput& output) {
  ended_ = true;
  site_.world.Log(absl::StrCat(id_, " ends after ", num_tokens_, " tokens"));
  const bool complete = num_tokens_ == max_tokens_;
  if (output.finish_reason == FinishReason::kLength && complete) return;
  if (output.finish_reason == FinishReason::kAbort && may_abort_) return;
  site_.world.Violate(absl::StrCat(id_, " ends with reason ", static_cast<int>(output.finish_reason),
                                   " after ", num_tokens_, " of ", max_tokens_,
                                   " tokens: ", output.error.message()));
}

void Ask(Site* site, Engine* engine, const std::shared_ptr<Client>& client, SleepArrivals arrivals,
         absl::Duration span) {
  World& world = site->world;
  Random& random = world.random();
  world.Sleep(random.Between(absl::ZeroDuration(), span));
  EngineRequest request = client->MakeRequest();
  request.sink = client;
  absl::Status status = engine->Submit(request);
  while (absl::IsFailedPrecondition(status) && arrivals == SleepArrivals::kReject) {
    world.Sleep(random.Between(absl::Milliseconds(10), absl::Milliseconds(200)));
    status = engine->Submit(request);
  }
  if (!status.ok()) return world.Violate(absl::StrCat(client->id(), ": ", status.message()));
  if (!random.Chance(0.15)) return;
  world.Sleep(random.Between(absl::ZeroDuration(), absl::Milliseconds(200)));
  client->NoteAbort();
  engine->Abort(client->id());
}

}  // namespace somnus::simulation
