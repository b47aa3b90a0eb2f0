#!/usr/bin/env python3
"""Open WebUI in a browser: a question for which the model calls one of Open WebUI's own tools, and one more."""
import atexit
import os
import socket
import subprocess
import time

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from client_models import PROGRAMS
from client_util import TRANSCRIPTS, Conversation, for_families, own_network

own_network()
from cluster_util import HANG_S, TMP, run_tests  # noqa: E402
from serve_util import stop_servers  # noqa: E402

atexit.register(stop_servers)
TELLS, BYE = "My clock says so, and it is right.", "You are welcome, any time."


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class OpenWebUI:
    def __init__(self, c):
        self.port, self.log = free_port(), os.path.join(TMP, c.name, "open-webui.log")
        env = {"HOME": c.home, "PATH": os.environ["PATH"], "DATA_DIR": c.work, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "any",
               "ENABLE_OLLAMA_API": "False", "OPENAI_API_BASE_URL": c.url + "/v1", "OPENAI_API_KEY": "any",
               "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai"}
        self.p = subprocess.Popen([os.path.join(PROGRAMS, "open-webui/bin/open-webui"), "serve", "--host", "127.0.0.1", "--port",
                                   str(self.port)], cwd=c.work, env=env, stdin=subprocess.DEVNULL, stdout=open(self.log, "w"),
                                  stderr=subprocess.STDOUT)
        atexit.register(self.p.kill)

    def __enter__(self):
        end = time.monotonic() + HANG_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                assert self.p.poll() is None and time.monotonic() < end, open(self.log).read()[-3000:]
                time.sleep(0.3)

    def __exit__(self, *_):
        self.p.terminate()
        self.p.wait()


def browser():
    options = webdriver.ChromeOptions()
    for o in "--headless=new", "--no-sandbox", "--window-size=1280,900", "--disable-background-networking":
        options.add_argument(o)
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    atexit.register(driver.quit)
    return driver


def text(driver):
    return driver.find_element(By.TAG_NAME, "body").text


def wait(driver, condition):
    return WebDriverWait(driver, HANG_S, ignored_exceptions=[WebDriverException]).until(condition)


def press(driver, name):
    wait(driver, lambda d: d.find_element(By.XPATH, f"//button[contains(., '{name}')]").click() is None)


def say(c, driver, what, until):
    c.say(f"> {what}")
    wait(driver, lambda d: d.find_element(By.ID, "chat-input").send_keys(what, Keys.ENTER) is None)
    wait(driver, lambda d: until in text(d))
    c.say(text(driver))


@for_families
def a_chat(family):
    c = Conversation("open-webui", family, lambda work: [
        {"thought": "The clock tool knows.", "content": "I look.", "call": ("get_current_timestamp", {})},
        {"thought": "It worked.", "content": TELLS}, {"thought": "They are polite.", "content": BYE}])
    with OpenWebUI(c) as ui:
        driver = browser()
        driver.get(f"http://127.0.0.1:{ui.port}/")
        try:
            press(driver, "Okay")  # closes the news
            say(c, driver, "What time is it?", TELLS)
            say(c, driver, "Thank you", BYE)
        finally:
            driver.save_screenshot(os.path.join(TRANSCRIPTS, c.name + ".png"))
            driver.quit()
    c.end()


run_tests()
