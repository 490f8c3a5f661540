#pragma once
// How much service each user has had: virtual token counters (Sheng et al. 2024, "Fairness in Serving Large
// Language Models"). A choice among users takes the user with the least service.
//
// A user's service is the number of prompt tokens that were computed for the user's requests, and
// kOutputWeight times the tokens that were generated. A user who was away does not save service up: at the
// first request after a time without requests, the account is lifted to the least account of all users who
// have requests, and to the virtual time. The virtual time is the highest least account that was ever seen:
// so nobody gains by a moment in which all users are away.
//
// Accounts of users without requests are kept, up to a number, and the accounts that were left for longest
// are forgotten first: a forgotten user begins at the virtual time, like a new user.
//
// Thread safe: the replicas of an engine, and their queue, share the accounts of its users.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

class UserAccounts : public std::enable_shared_from_this<UserAccounts> {
 public:
  static constexpr int64_t kPromptWeight = 1;
  static constexpr int64_t kOutputWeight = 2;  // an output token costs about as much as two prompt tokens

  // A user's account while somebody holds the account, for a request: then the account is not forgotten, and
  // the user is there.
  class Visit;

  // `max_users`: how many users without requests have accounts at most.
  static std::shared_ptr<UserAccounts> Create(int32_t max_users);

  std::shared_ptr<Visit> Enter(const std::string& user);
  // Accounts that there are.
  size_t size() const;

 private:
  struct Account {
    std::string user;
    std::atomic<int64_t> service{0};
    int64_t num_visits = 0;               // under mu_
    std::list<Account*>::iterator place;  // under mu_; in present_ or away_
  };

  explicit UserAccounts(int32_t max_users) : max_users_(max_users) {}
  // Without `account`, which is about to come. The virtual time where nobody is there.
  int64_t Floor() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave(Account* account);

  const int32_t max_users_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<Account>> accounts_ ABSL_GUARDED_BY(mu_);
  std::list<Account*> present_ ABSL_GUARDED_BY(mu_);
  std::list<Account*> away_ ABSL_GUARDED_BY(mu_);  // the user who left last is first
  int64_t virtual_time_ ABSL_GUARDED_BY(mu_) = 0;
};

class UserAccounts::Visit {
 public:
  Visit(std::shared_ptr<UserAccounts> accounts, Account* account)
      : accounts_(std::move(accounts)), account_(account) {}
  ~Visit() { accounts_->Leave(account_); }
  Visit(const Visit&) = delete;

  int64_t service() const { return account_->service.load(std::memory_order_relaxed); }
  void Charge(int64_t cost) { account_->service.fetch_add(cost, std::memory_order_relaxed); }
  // The same account for all visits of a user, and for nobody else while one of these visits lasts.
  const void* user() const { return account_; }

 private:
  const std::shared_ptr<UserAccounts> accounts_;
  Account* const account_;
};

}  // namespace somnus
