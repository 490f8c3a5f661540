// The beams that go on, and the answers, against the rules as written down: every answer is kept, all steps
// are made, and everything is sorted at the end.

#include "coordinator/scheduler/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace somnus {
namespace {

constexpr int32_t kVocab = 40;

// Log-probabilities after `tokens`: a function of the tokens; the 2 * width likeliest are told.
Logprobs CandidatesAfter(const std::vector<int32_t>& tokens, int32_t count) {
  std::seed_seq seed(tokens.begin(), tokens.end());
  std::mt19937 random(seed);
  std::vector<std::pair<float, int32_t>> all;
  float sum = 0;
  for (int32_t token = 0; token < kVocab; ++token) {
    const float weight = 1 + static_cast<float>(random() % 1000);
    sum += weight;
    all.emplace_back(weight, token);
  }
  std::sort(all.rbegin(), all.rend());
  Logprobs logprobs;
  for (int32_t i = 0; i <= count; ++i) {  // the chosen token, then the likeliest
    const auto& [weight, token] = all[std::max(0, i - 1)];
    logprobs.token_ids.push_back(token);
    logprobs.logprobs.push_back(std::log(weight / sum));
  }
  logprobs.rank = 1;
  return logprobs;
}

struct PlainBeam {
  std::vector<int32_t> tokens;  // with the prompt
  double cum_logprob = 0;
  bool stopped = false;
};

std::vector<PlainBeam> PlainSearch(const BeamSearchParams& params, const std::vector<int32_t>& prompt,
                                   int32_t max_tokens) {
  const std::set<int32_t> eos(params.eos_token_ids.begin(), params.eos_token_ids.end());
  std::vector<PlainBeam> live = {{prompt}}, answers;
  for (int32_t step = 0; step < max_tokens; ++step) {
    std::vector<PlainBeam> next;
    for (const PlainBeam& beam : live) {
      const Logprobs candidates = CandidatesAfter(beam.tokens, 2 * params.width);
      for (size_t i = 1; i < candidates.token_ids.size(); ++i) {
        PlainBeam longer = {beam.tokens, beam.cum_logprob + candidates.logprobs[i]};
        longer.stopped = !params.ignore_eos && eos.contains(candidates.token_ids[i]);
        if (!longer.stopped || params.includes_eos) longer.tokens.push_back(candidates.token_ids[i]);
        (longer.stopped ? answers : next).push_back(std::move(longer));
      }
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const PlainBeam& a, const PlainBeam& b) { return a.cum_logprob > b.cum_logprob; });
    next.resize(std::min<size_t>(next.size(), params.width));
    live = std::move(next);
  }
  answers.insert(answers.end(), live.begin(), live.end());
  const auto score = [&](const PlainBeam& beam) {
    const size_t length = beam.tokens.size() - (eos.contains(beam.tokens.back()) ? 1 : 0);
    return beam.cum_logprob / std::pow(static_cast<double>(length), params.length_penalty);
  };
  std::stable_sort(answers.begin(), answers.end(),
                   [&](const PlainBeam& a, const PlainBeam& b) { return score(a) > score(b); });
  answers.resize(std::min<size_t>(answers.size(), params.width));
  return answers;
}

// Returns the number of steps.
int32_t RunSearch(const std::vector<int32_t>& prompt, int32_t width, BeamSearch* search) {
  int32_t num_steps = 0;
  for (; !search->done(); ++num_steps) {
    std::vector<Logprobs> candidates;
    for (const Beam& beam : search->live()) {
      std::vector<int32_t> tokens = prompt;
      tokens.insert(tokens.end(), beam.outputs.begin(), beam.outputs.end());
      candidates.push_back(CandidatesAfter(tokens, 2 * width));
    }
    search->Advance(candidates);
  }
  return num_steps;
}

void ExpectSame(const std::vector<Beam>& beams, const std::vector<PlainBeam>& expected, size_t prompt_len) {
  ASSERT_EQ(beams.size(), expected.size());
  for (size_t i = 0; i < beams.size(); ++i) {
    const std::vector<int32_t> outputs(expected[i].tokens.begin() + prompt_len, expected[i].tokens.end());
    EXPECT_EQ(beams[i].outputs, outputs) << "answer " << i;
    EXPECT_EQ(beams[i].cum_logprob, expected[i].cum_logprob) << "answer " << i;
    EXPECT_EQ(beams[i].finish_reason, expected[i].stopped ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(beams[i].stop_token_id.has_value(), expected[i].stopped);
  }
}

TEST(BeamSearchTest, SameAsTheRules) {
  std::mt19937 random(1);
  int32_t num_shorter = 0;
  for (int round = 0; round < 400; ++round) {
    BeamSearchParams params;
    params.width = 1 + static_cast<int32_t>(random() % 6);
    params.length_penalty = std::vector<double>{-1, 0, 0.3, 1, 2.5}[random() % 5];
    params.ignore_eos = random() % 4 == 0;
    params.includes_eos = random() % 2 == 0;
    params.num_logprobs = static_cast<int32_t>(random() % 4) - 1;
    for (uint32_t i = random() % 4; i > 0; --i)
      params.eos_token_ids.push_back(static_cast<int32_t>(random() % kVocab));
    std::vector<int32_t> prompt;
    for (uint32_t i = 2 + random() % 5; i > 0; --i) prompt.push_back(static_cast<int32_t>(random() % kVocab));
    const int32_t max_tokens = 1 + static_cast<int32_t>(random() % 12);
    BeamSearch search(&params, prompt, max_tokens);
    const int32_t num_steps = RunSearch(prompt, params.width, &search);
    EXPECT_LE(num_steps, max_tokens);
    num_shorter += num_steps < max_tokens ? 1 : 0;
    SCOPED_TRACE(round);
    ExpectSame(search.Answers(), PlainSearch(params, prompt, max_tokens), prompt.size());
  }
  EXPECT_GT(num_shorter, 10) << "answers were never certain before the last step";
}

// The search is moved between schedulers as a value.
TEST(BeamSearchTest, GoesOnWhereItWas) {
  BeamSearchParams params{.width = 3, .eos_token_ids = {1, 2, 3, 4}};
  const std::vector<int32_t> prompt = {5, 6};
  BeamSearch whole(&params, prompt, 10), first(&params, prompt, 10);
  RunSearch(prompt, 3, &whole);
  first.Advance({CandidatesAfter(prompt, 6)});
  BeamSearch second(&params, prompt, 10, first.state());
  RunSearch(prompt, 3, &second);
  ASSERT_EQ(second.Answers().size(), whole.Answers().size());
  for (size_t i = 0; i < whole.Answers().size(); ++i) {
    EXPECT_EQ(second.Answers()[i].outputs, whole.Answers()[i].outputs);
    EXPECT_EQ(second.Answers()[i].score, whole.Answers()[i].score);
  }
}

TEST(BeamSearchTest, LogprobsAreThoseThatWereAskedFor) {
  BeamSearchParams params{.width = 3, .num_logprobs = 2};
  const std::vector<int32_t> prompt = {5, 6};
  BeamSearch search(&params, prompt, 4);
  RunSearch(prompt, 3, &search);
  for (const Beam& beam : search.Answers()) {
    ASSERT_EQ(beam.logprobs.size(), beam.outputs.size());
    double sum = 0;
    std::vector<int32_t> tokens = prompt;
    for (size_t i = 0; i < beam.outputs.size(); ++i) {
      const Logprobs all = CandidatesAfter(tokens, 6);
      const Logprobs& one = *beam.logprobs[i];
      ASSERT_EQ(one.token_ids.size(), 3u);
      EXPECT_EQ(one.token_ids[0], beam.outputs[i]);
      EXPECT_EQ(one.token_ids[1], all.token_ids[1]);
      EXPECT_EQ(one.token_ids[2], all.token_ids[2]);
      EXPECT_EQ(all.token_ids[one.rank], beam.outputs[i]);
      sum += one.logprobs[0];
      tokens.push_back(beam.outputs[i]);
    }
    EXPECT_EQ(sum, beam.cum_logprob);
  }
}

// Every second token is EOS, so that answers come soon.
BeamSearchParams ManyAnswers(EarlyStopping early_stopping) {
  BeamSearchParams params{.width = 2, .early_stopping = early_stopping};
  for (int32_t token = 0; token < kVocab; token += 2) params.eos_token_ids.push_back(token);
  return params;
}

TEST(BeamSearchTest, StopsAtTheFirstAnswersWhereAskedTo) {
  const std::vector<int32_t> prompt = {5, 6, 7};
  const BeamSearchParams at_width = ManyAnswers(EarlyStopping::kAtWidth);
  BeamSearch search(&at_width, prompt, 30);
  size_t num_ended = 0;
  while (!search.done()) {
    EXPECT_LT(search.state().ended.size(), 2u);
    std::vector<Logprobs> candidates;
    for (const Beam& beam : search.live()) {
      std::vector<int32_t> tokens = prompt;
      tokens.insert(tokens.end(), beam.outputs.begin(), beam.outputs.end());
      candidates.push_back(CandidatesAfter(tokens, 4));
    }
    search.Advance(candidates);
    num_ended = search.state().ended.size();
  }
  EXPECT_EQ(num_ended, 2u);
  for (const Beam& beam : search.Answers()) EXPECT_EQ(beam.finish_reason, FinishReason::kStop);
}

// The heuristic does not wait for longer answers that a length penalty would prefer.
TEST(BeamSearchTest, TheHeuristicStopsBeforeTheAnswersAreCertain) {
  const std::vector<int32_t> prompt = {5, 6, 7};
  int32_t num_steps[3] = {};
  for (const auto kind : {EarlyStopping::kNever, EarlyStopping::kHeuristic, EarlyStopping::kAtWidth}) {
    BeamSearchParams params = ManyAnswers(kind);
    params.length_penalty = 0.5;
    BeamSearch search(&params, prompt, 30);
    num_steps[static_cast<int>(kind)] = RunSearch(prompt, 2, &search);
  }
  EXPECT_GT(num_steps[0], num_steps[1]);
  EXPECT_GE(num_steps[1], num_steps[2]);
}

TEST(BeamSearchTest, EndsWhereNoBeamGoesOn) {
  BeamSearchParams params{.width = 2};
  for (int32_t token = 0; token < kVocab; ++token) params.eos_token_ids.push_back(token);
  const std::vector<int32_t> prompt = {5};
  BeamSearch search(&params, prompt, 10);
  EXPECT_EQ(RunSearch(prompt, 2, &search), 1);
  ASSERT_EQ(search.Answers().size(), 2u);
  EXPECT_TRUE(search.Answers()[0].outputs.empty());
  EXPECT_EQ(search.Answers()[0].stop_token_id, CandidatesAfter(prompt, 4).token_ids[1]);
}

TEST(BeamSearchTest, ImpossibleTokensAreNoCandidates) {
  BeamSearchParams params{.width = 2};
  BeamSearch search(&params, {5}, 10);
  Logprobs candidates;
  candidates.token_ids = {7, 7, 8, 9, 10};
  candidates.logprobs = {-1, -1, -HUGE_VALF, -HUGE_VALF, -HUGE_VALF};
  EXPECT_EQ(search.Advance({candidates}), std::vector<int32_t>{0});
  EXPECT_EQ(search.live()[0].outputs, std::vector<int32_t>{7});
}

}  // namespace
}  // namespace somnus
