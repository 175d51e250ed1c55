"""Who may reach what: each route and method with the status that each persona gets.

A row names a route, its methods (comma-separated; ANY stands for those without a row of their own) and the statuses,
one for each persona, or one for everybody. A method without a row must be refused: 401, 403, 404, 405 or the way to
sign-in. Requests carry no body: a persona that may write gets 422 (or the page again, 200), one that may not gets
403, or 404 as a stranger. A route of the URLconf without a row fails the tests, and so does a row without a route.

Personas: nobody (not signed in); alice owner, bob developer, carol viewer, bill billing, all of acme; mallory owner of
evil; root platform admin; akey and ekey, keys of acme and evil with every scope; proc, a process of the product.
"""

PERSONAS = ("nobody", "alice", "bob", "carol", "bill", "mallory", "root", "akey", "ekey", "proc")

MATRIX = """
# route and methods                                nobody alice bob carol bill mallory root akey ekey proc
health GET                                            200

# one's own account: django-allauth. A key is nobody here.
account_login GET,POST,PUT                            200   302 302   302  302     302  302  200  200  200
account_login ANY                                     405   302 302   302  302     302  302  405  405  405
account_signup ANY                                    200   302 302   302  302     302  302  200  200  200
account_logout GET                                    302   200 200   200  200     200  200  302  302  302
account_logout POST                                   302
account_inactive GET                                  200
account_reset_password GET,POST,PUT                   200
account_password_reset_completed GET                  200
account_reauthenticate GET,POST,PUT                   302   200 200   200  200     200  200  302  302  302
account_request_reauthentication_code GET,POST,PUT    302   200 200   200  200     200  200  302  302  302
account_change_password GET,POST,PUT                  302   200 200   200  200     200  200  302  302  302
account_email GET                                     302   200 200   200  200     200  200  302  302  302
account_email POST,PUT                                302
mfa_index GET                                         302   200 200   200  200     200  200  302  302  302

# steps of a flow that nobody here has begun, or that want the password again: back to where it begins
account_confirm_reauthentication_code ANY             302
account_email_verification_sent ANY                   302
account_set_password ANY                              302
account_confirm_login_code ANY                        302
account_confirm_password_reset_code ANY               302
account_complete_password_reset ANY                   302
mfa_authenticate ANY                                  302
mfa_reauthenticate ANY                                302
mfa_activate_totp ANY                                 302
mfa_generate_recovery_codes ANY                       302
mfa_deactivate_totp ANY                               302   404 404   404  404     404  404  302  302  302
mfa_view_recovery_codes GET                           302   404 404   404  404     404  404  302  302  302
mfa_download_recovery_codes GET                       302   404 404   404  404     404  404  302  302  302
"""
