#include "threads.h"

#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace peagle {

namespace {

constexpr int SPINS_IN_BARRIER = 4000;    // then give the core to whoever wants it
constexpr int SPINS_BEFORE_SLEEP = 20000;  // about a quarter of a millisecond

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Crew::Crew(std::size_t others) {
  for (std::size_t index = 1; index <= others; index++)
    others_.emplace_back([this, index] { work_forever(index); });
}

Crew::~Crew() {
  {
    std::lock_guard<std::mutex> lock(sleeping_);
    stop_ = true;
    generation_++;
  }
  wake_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Crew::run(const std::function<void(Team&)>& work) {
  std::lock_guard<std::mutex> alone(one_at_a_time_);
  work_ = &work;
  failure_ = nullptr;
  for (Counter& next : next_) next.value.store(0, std::memory_order_relaxed);
  waiting_.store(0, std::memory_order_relaxed);
  sense_.store(false, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  if (!others_.empty()) {
    {
      std::lock_guard<std::mutex> lock(sleeping_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  work_once(0);
  // The others look at `work` until they are done, whatever happened here.
  for (int spins = 0; finished_.load(std::memory_order_acquire) < others_.size(); spins++) {
    if (spins < SPINS_IN_BARRIER) pause();
    else std::this_thread::yield();
  }
  if (failure_) std::rethrow_exception(failure_);
}

void Crew::work_forever(std::size_t index) {
  std::size_t seen = 0;
  for (;;) {
    int spins = 0;
    while (generation_.load(std::memory_order_acquire) == seen && spins++ < SPINS_BEFORE_SLEEP)
      pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(sleeping_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    work_once(index);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

void Crew::work_once(std::size_t index) {
  Team team(*this, index);
  try {
    (*work_)(team);
  } catch (const Abandoned&) {
  } catch (...) {
    std::lock_guard<std::mutex> lock(failing_);
    if (!failure_) failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

void Crew::barrier(bool& sense) {
  sense = !sense;
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) == others_.size()) {
    waiting_.store(0, std::memory_order_relaxed);
    sense_.store(sense, std::memory_order_release);
    return;
  }
  for (int spins = 0; sense_.load(std::memory_order_acquire) != sense; spins++) {
    // A thread that failed never comes.
    if (failed_.load(std::memory_order_acquire)) throw Abandoned{};
    if (spins < SPINS_IN_BARRIER) pause();
    else std::this_thread::yield();
  }
}

ThreadPool::ThreadPool(std::size_t threads)
    : size_(threads > 0 ? threads : 1),
      process_(getpid()),
      crew_(std::make_unique<Crew>(size_ - 1)) {}

ThreadPool::~ThreadPool() {
  // In a fork of its process a crew's threads do not exist: nobody can wait for them.
  if (process_ != getpid()) (void)crew_.release();
}

void ThreadPool::run(const std::function<void(Team&)>& work) {
  if (process_ != getpid()) {
    (void)crew_.release();
    crew_ = std::make_unique<Crew>(size_ - 1);
    process_ = getpid();
  }
  crew_->run(work);
}

}  // namespace peagle
