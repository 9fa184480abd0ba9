// One pool of threads that work through a pass together.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace peagle {

class Team;

// The threads beside the caller and what all of them share. They spin for a moment after a pass,
// since the next one often follows at once, and then sleep: a server shares these cores. Where
// another program has the core of one of them, every phase of a pass would wait for its turn, so
// the caller then works alone for a while.
class Crew {
 public:
  explicit Crew(std::size_t others);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // As ThreadPool::run; one caller at a time, others wait.
  void run(const std::function<void(Team&)>& work);

 private:
  friend class Team;
  // Tells the threads of a pass to leave it, since another one failed.
  struct Abandoned {};
  struct alignas(64) Counter {
    std::atomic<std::size_t> value{0};
  };

  using Clock = std::chrono::steady_clock;

  void work_forever(std::size_t index);
  void work_once(std::size_t index);
  void barrier(std::size_t index, bool& sense);
  // Lets others go on, and counts the caller's time doing so.
  template <class Done>
  void give_way(std::size_t index, const Done& done);
  void judge(Clock::time_point began);

  std::vector<std::thread> others_;
  std::mutex one_at_a_time_, sleeping_, failing_;
  std::condition_variable wake_;
  const std::function<void(Team&)>* work_ = nullptr;
  std::exception_ptr failure_;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::size_t> generation_{0};
  alignas(64) std::atomic<std::size_t> finished_{0};
  alignas(64) std::atomic<std::size_t> waiting_{0};
  alignas(64) std::atomic<bool> sense_{false};
  std::atomic<bool> failed_{false};
  Counter next_[3];
  std::size_t working_ = 1;               // threads of this pass
  Clock::duration waited_{0}, alone_for_{0};
  Clock::time_point alone_until_{};
};

class ThreadPool {
 public:
  // So many threads, of which the caller of `run` is one.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t size() const { return size_; }
  // Runs `work` on every thread, the caller among them, and returns when all are done. What it
  // throws on any thread ends the pass on all of them and is thrown here.
  void run(const std::function<void(Team&)>& work);

 private:
  const std::size_t size_;
  pid_t process_;
  std::unique_ptr<Crew> crew_;
};

// One thread's view of the others in a pass.
class Team {
 public:
  Team(Crew& crew, std::size_t index) : index(index), crew_(crew) {}

  // Takes the numbers below `count` in pieces of `grain`; what each thread gets is chance, so
  // pieces must not depend on one another. All threads must call it; all leave it together.
  template <class Piece>
  void share(std::size_t count, std::size_t grain, const Piece& piece) {
    std::atomic<std::size_t>& next = crew_.next_[phase_ % 3].value;
    for (;;) {
      const std::size_t first = next.fetch_add(grain, std::memory_order_relaxed);
      if (first >= count) break;
      piece(first, first + grain < count ? first + grain : count);
    }
    meet();
  }

  const std::size_t index;

 private:
  void meet() {
    // Everyone has left the counter used two phases from now: reset it before meeting.
    if (index == 0) crew_.next_[(phase_ + 2) % 3].value.store(0, std::memory_order_relaxed);
    phase_++;
    crew_.barrier(index, sense_);
  }

  Crew& crew_;
  std::size_t phase_ = 0;
  bool sense_ = false;
};

}  // namespace peagle
