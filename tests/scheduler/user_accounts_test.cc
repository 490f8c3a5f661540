#include "coordinator/scheduler/user_accounts.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace somnus {
namespace {

TEST(UserAccountsTest, AUserHasOneAccountHoweverManyRequests) {
  const auto accounts = UserAccounts::Create(10);
  const auto first = accounts->Enter("a"), second = accounts->Enter("a"), other = accounts->Enter("b");
  first->Charge(5);
  second->Charge(2);
  EXPECT_EQ(first->service(), 7);
  EXPECT_EQ(first->user(), second->user());
  EXPECT_NE(first->user(), other->user());
  EXPECT_EQ(other->service(), 0);
  EXPECT_EQ(accounts->size(), 2u);
}

TEST(UserAccountsTest, WhoComesBackIsLiftedToTheLeastOfThoseWhoAreThere) {
  const auto accounts = UserAccounts::Create(10);
  auto a = accounts->Enter("a"), b = accounts->Enter("b"), c = accounts->Enter("c");
  a->Charge(10);
  b->Charge(30);
  c->Charge(50);
  a.reset();
  a = accounts->Enter("a");
  EXPECT_EQ(a->service(), 30);
  c.reset();
  c = accounts->Enter("c");
  EXPECT_EQ(c->service(), 50) << "nobody is lowered";
}

TEST(UserAccountsTest, AMomentInWhichAllAreAwayGivesNobodyAnything) {
  const auto accounts = UserAccounts::Create(10);
  auto a = accounts->Enter("a");
  a->Charge(1000);
  a.reset();
  EXPECT_EQ(accounts->Enter("b")->service(), 1000);
  EXPECT_EQ(accounts->Enter("a")->service(), 1000);
}

TEST(UserAccountsTest, AccountsAreBoundedAndThoseLeftForLongestGo) {
  const auto accounts = UserAccounts::Create(2);
  auto rich = accounts->Enter("rich");
  rich->Charge(7);
  rich.reset();
  const auto stays = accounts->Enter("stays");  // at 7
  stays->Charge(1);
  for (const char* user : {"b", "c"}) accounts->Enter(user)->Charge(100);
  EXPECT_EQ(accounts->size(), 3u) << "of those who are away, two";
  EXPECT_EQ(accounts->Enter("c")->service(), 108);
  EXPECT_EQ(accounts->Enter("rich")->service(), 8) << "it was forgotten, and begins like a new one";
  for (int i = 0; i < 1000; ++i) accounts->Enter(std::to_string(i));
  EXPECT_EQ(accounts->size(), 3u);
}

TEST(UserAccountsTest, ReplicasShareThem) {
  const auto accounts = UserAccounts::Create(4);
  const auto mine = accounts->Enter("shared");
  std::vector<std::thread> replicas;
  for (int i = 0; i < 4; ++i) {
    replicas.emplace_back([&, i] {
      for (int round = 0; round < 2000; ++round) {
        accounts->Enter("shared")->Charge(1);
        accounts->Enter(std::to_string(round % 7 + i))->Charge(1);
      }
    });
  }
  for (std::thread& replica : replicas) replica.join();
  EXPECT_EQ(mine->service(), 8000);
  EXPECT_LE(accounts->size(), 5u);
}

}  // namespace
}  // namespace somnus
