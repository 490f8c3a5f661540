#include "coordinator/structured/forced_tokens.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace somnus {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

std::shared_ptr<const Tokenizer> Bpe(const std::string& letters, const Merges& merges) {
  TokenizerData data;
  for (const char letter : letters) data.tokens.emplace_back(1, letter);
  for (const auto& [left, right] : merges) data.tokens.push_back(left + right);
  data.merges = merges;
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<std::string> Texts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> texts;
  for (const int32_t id : ids) texts.push_back(tokenizer.TokenBytes(id));
  return texts;
}

TEST(ForcedTokenizer, ATokenThatMayGoOnWaits) {
  const auto tokenizer =
      Bpe("orderId\"{", {{"o", "r"}, {"d", "e"}, {"de", "r"}, {"or", "der"}, {"I", "d"}, {"order", "Id"}});
  const ForcedTokenizer forced(tokenizer);
  EXPECT_EQ(Texts(*tokenizer, forced.Tokens("{\"order")), (std::vector<std::string>{"{", "\""}));
  EXPECT_EQ(Texts(*tokenizer, forced.Tokens("{\"order\"")),
            (std::vector<std::string>{"{", "\"", "order", "\""}));
  EXPECT_TRUE(forced.Tokens("order").empty());
  EXPECT_TRUE(forced.Tokens("").empty());
}

TEST(ForcedTokenizer, ALaterMergeMayChangeATokenThatIsComplete) {
  // abc is a, bc; with d behind, c goes to d, and then b to a.
  const auto tokenizer = Bpe("abcd", {{"c", "d"}, {"b", "c"}, {"a", "b"}});
  const ForcedTokenizer forced(tokenizer);
  EXPECT_EQ(Texts(*tokenizer, tokenizer->Encode("abc", false)), (std::vector<std::string>{"a", "bc"}));
  EXPECT_TRUE(forced.Tokens("abc").empty());
}

TEST(ForcedTokenizer, SpecialTokensAreNeverForced) {
  TokenizerData data;
  data.tokens = {"<", "e", ">", "<e>"};
  data.added_tokens = {{.id = 3, .content = "<e>", .special = true}};
  const std::shared_ptr<const Tokenizer> tokenizer = *Tokenizer::Create(std::move(data));
  EXPECT_TRUE(ForcedTokenizer(tokenizer).Tokens("<e>").empty());
}

// Vocabularies of random merges: the tokens stay before every continuation.
TEST(ForcedTokenizer, NoContinuationChangesTheTokens) {
  std::mt19937 random(1);
  int64_t forced_tokens = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    Merges merges;
    std::set<std::string> known(tokens.begin(), tokens.end());
    for (int tries = 0; tries < 12; ++tries) {
      const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 5 || !known.insert(left + right).second) continue;
      merges.emplace_back(left, right);
      tokens.push_back(left + right);
    }
    const auto tokenizer = Bpe("abc", merges);
    const ForcedTokenizer forced(tokenizer);
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (size_t length = 1 + random() % 12; text.size() < length;) text += "abc"[random() % 3];
      const std::vector<int32_t> ids = forced.Tokens(text);
      forced_tokens += static_cast<int64_t>(ids.size());
      for (int continuation = 0; continuation < 243; ++continuation) {
        std::string whole = text;
        for (int rest = continuation, letter = 0; letter < 5; ++letter, rest /= 3) whole += "abc"[rest % 3];
        const std::vector<int32_t> all = tokenizer->Encode(whole, false);
        ASSERT_LE(ids.size(), all.size());
        ASSERT_TRUE(std::equal(ids.begin(), ids.end(), all.begin())) << text << " in " << whole;
      }
    }
  }
  EXPECT_GT(forced_tokens, 1000);
}

}  // namespace
}  // namespace somnus
