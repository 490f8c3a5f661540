#include "coordinator/scheduler/user_accounts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace somnus {

std::shared_ptr<UserAccounts> UserAccounts::Create(int32_t max_users) {
  return std::shared_ptr<UserAccounts>(new UserAccounts(max_users));
}

int64_t UserAccounts::Floor() {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Account* account : present_) least = std::min(least, account->service.load());
  if (!present_.empty()) virtual_time_ = std::max(virtual_time_, least);
  return virtual_time_;
}

std::shared_ptr<UserAccounts::Visit> UserAccounts::Enter(const std::string& user) {
  absl::MutexLock lock(&mu_);
  std::unique_ptr<Account>& account = accounts_[user];
  const bool is_new = account == nullptr;
  if (is_new) {
    account = std::make_unique<Account>();
    account->user = user;
  }
  if (account->num_visits++ == 0) {
    account->service = std::max(account->service.load(), Floor());
    if (is_new) {
      account->place = present_.insert(present_.end(), account.get());
    } else {
      present_.splice(present_.end(), away_, account->place);
    }
  }
  return std::make_shared<Visit>(shared_from_this(), account.get());
}

void UserAccounts::Leave(Account* account) {
  absl::MutexLock lock(&mu_);
  if (--account->num_visits > 0) return;
  Floor();  // while the user still counts
  away_.splice(away_.begin(), present_, account->place);
  while (away_.size() > static_cast<size_t>(max_users_)) {
    const std::string user = away_.back()->user;
    away_.pop_back();
    accounts_.erase(user);
  }
}

size_t UserAccounts::size() const {
  absl::MutexLock lock(&mu_);
  return accounts_.size();
}

}  // namespace somnus
