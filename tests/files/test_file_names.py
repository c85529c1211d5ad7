from hpcfl.files.file_names import make_file_name


def test_characters_that_file_systems_refuse_become_one_underscore():
    assert make_file_name("my file.py:My/Method") == "my_file.py_My_Method"
    assert make_file_name("lr=0.1,beta+1_x.y-z") == "lr=0.1_beta+1_x.y-z"
